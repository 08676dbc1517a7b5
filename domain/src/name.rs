//! Names, parsed once at the border and valid from then on.
//!
//! A token is `[A-Za-z0-9_-]`, at most 64 bytes, and does not begin with `_`; run ids may have 96 bytes; a job type is
//! one or more tokens joined by dots, at most 128 bytes. Names are cheap to clone: most are stored inline, longer ones
//! share their text.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};
use smol_str::{SmolStr, format_smolstr};

use crate::fingerprint::fnv;
use crate::schema::{reads, schema};
use crate::{Lane, Timestamp};

/// The maximum number of bytes in a tenant, queue or schedule id.
pub const TOKEN_MAX: usize = 64;
/// The maximum number of bytes in a run id.
pub const RUN_ID_MAX: usize = 96;
/// The maximum number of bytes in a webhook's id: few enough that ids of runs begin with it.
pub const WEBHOOK_ID_MAX: usize = 48;
/// The maximum number of bytes in a job type.
pub const TYPE_MAX: usize = 128;

const UNREADABLE: &str = "_";

/// A name that does not parse: which one, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {shown:?} {reason}", shown = shorten(value))]
pub struct NameError {
    /// Which name was read: `tenant`, `queue`, `type`, `run_id`, `priority`.
    pub what: &'static str,
    /// The text that was found.
    pub value: String,
    /// Why it is refused.
    pub reason: String,
}

impl NameError {
    pub(crate) fn new(what: &'static str, value: &str, reason: impl Into<String>) -> Self {
        Self { what, value: value.to_owned(), reason: reason.into() }
    }
}

/// Which names there are, for the error about one that there is not.
pub fn there_are<'n>(names: impl IntoIterator<Item = &'n str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    if names.is_empty() { "there is none".to_owned() } else { format!("there are: {}", names.join(", ")) }
}

/// Error texts stay short, whatever was sent.
fn shorten(value: &str) -> String {
    const SHOWN: usize = 100;
    if value.chars().count() <= SHOWN {
        return value.to_owned();
    }
    value.chars().take(SHOWN).chain(['…']).collect()
}

/// Checks the name of a step. None is kept for the system, as names of steps stand behind others.
///
/// # Errors
/// Says which byte is wrong and what is allowed.
pub fn check_step(text: &str) -> Result<(), NameError> {
    check_word("step", text, TOKEN_MAX, true)
}

fn check_token(what: &'static str, value: &str, max: usize) -> Result<(), NameError> {
    check_word(what, value, max, false)
}

fn check_word(what: &'static str, value: &str, max: usize, may_be_systems: bool) -> Result<(), NameError> {
    let reason = if value.is_empty() {
        "is empty".to_owned()
    } else if value.len() > max {
        format!("has {} bytes, {max} are allowed", value.len())
    } else if value.starts_with('_') && !may_be_systems {
        "begins with `_`, which is kept for the system".to_owned()
    } else if let Some(found) = foreign(value, "_-") {
        format!("has {found}; allowed are A-Z a-z 0-9 _ -")
    } else {
        return Ok(());
    };
    Err(NameError::new(what, value, reason))
}

/// The first character that is neither a letter nor a digit nor one of `others`, and where it stands.
fn foreign(text: &str, others: &str) -> Option<String> {
    let (at, c) = text.char_indices().find(|(_, c)| !(c.is_ascii_alphanumeric() || others.contains(*c)))?;
    Some(if c == ' ' { format!("a blank at byte {at}") } else { format!("{c:?} at byte {at}") })
}

fn check_type(text: &str) -> Result<(), NameError> {
    let refuse = |reason: String| Err(NameError::new("type", text, reason));
    if text.len() > TYPE_MAX {
        return refuse(format!("has {} bytes, {TYPE_MAX} are allowed", text.len()));
    }
    if let Some(found) = foreign(text, "_-.") {
        return refuse(format!("has {found}; allowed are A-Z a-z 0-9 _ - in parts joined by dots, as in email.send"));
    }
    if !text.is_empty() && text.split('.').any(str::is_empty) {
        return refuse("begins or ends with a dot, or has two in a row; write it as email.send".to_owned());
    }
    text.split('.').try_for_each(|part| match check_token("type", part, TOKEN_MAX) {
        Err(error) if part.len() < text.len() => {
            refuse(format!("has a part, {:?}, that {}", error.value, error.reason))
        }
        other => other,
    })
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal, $max:expr, $pattern:expr, $check:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[serde(transparent)]
        pub struct $name(SmolStr);

        impl $name {
            /// Reads the name.
            ///
            /// # Errors
            /// Says which byte is wrong and what is allowed.
            pub fn parse(text: &str) -> Result<Self, NameError> {
                let check: fn(&str) -> Result<(), NameError> = $check;
                check(text)?;
                Ok(Self(SmolStr::new(text)))
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                Self::parse(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($what, " {}"), self.0)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        schema!($name { "type": "string", "maxLength": $max, "pattern": $pattern });
    };
}

/// Names that stand in subjects and headers, where somebody may have written what is none.
macro_rules! met {
    ($($name:ident),*) => {$(
        impl $name {
            /// Stands for a name that cannot be read: `_`, which no client can choose.
            pub fn unreadable() -> Self {
                Self(SmolStr::new_static(UNREADABLE))
            }

            fn read(text: &str) -> Result<Self, NameError> {
                if text == UNREADABLE { Ok(Self::unreadable()) } else { Self::parse(text) }
            }
        }
    )*};
}

/// The form of an id that a client chooses.
const ID: &str = "^[A-Za-z0-9-][A-Za-z0-9_-]*$";
/// The form of a token, or of what stands for one that cannot be read.
const TOKEN: &str = "^(_|[A-Za-z0-9-][A-Za-z0-9_-]*)$";
const TYPE: &str = r"^(_|[A-Za-z0-9-][A-Za-z0-9_-]*(\.[A-Za-z0-9-][A-Za-z0-9_-]*)*)$";

name!(
    /// The owner of a job: the third token of every subject, so that NATS permissions can fence a tenant in.
    Tenant, "tenant", TOKEN_MAX, TOKEN, |text| check_token("tenant", text, TOKEN_MAX));
name!(
    /// The queue a client names.
    Queue, "queue", TOKEN_MAX, TOKEN, |text| check_token("queue", text, TOKEN_MAX));
name!(
    /// Identifies a recurring or delayed schedule.
    ScheduleId, "schedule id", TOKEN_MAX, ID, |text| check_token("id", text, TOKEN_MAX));
name!(
    /// Identifies a webhook; its deliveries' run ids begin with it.
    WebhookId, "webhook id", WEBHOOK_ID_MAX, ID, |text| check_token("id", text, WEBHOOK_ID_MAX));
name!(
    /// Identifies a batch of jobs; the run of the job that completes it is `<batch>-done`.
    BatchId, "batch id", TOKEN_MAX, ID, |text| check_token("id", text, TOKEN_MAX));
name!(
    /// Identifies one life of one job; unique within its tenant.
    RunId, "run", RUN_ID_MAX, TOKEN, |text| check_token("run_id", text, RUN_ID_MAX));
name!(
    /// The type of work, for example `email.send`.
    JobType, "type", TYPE_MAX, TYPE, check_type);

met!(Tenant, Queue, RunId, JobType);
reads!(Tenant, Queue, RunId, JobType => |text| Self::read(text));
// A client makes these: each is read as it is chosen.
reads!(ScheduleId, WebhookId, BatchId => |text| Self::parse(text));

impl RunId {
    /// The id of a bare publish that came without one: `<queue>-p<priority>-<stream sequence>`.
    pub fn derived(lane: &Lane, sequence: u64) -> Self {
        let Lane { queue, priority } = lane;
        Self(format_smolstr!("{queue}-{priority}-{sequence}"))
    }

    /// Reads an id that a client chose. It refuses an id that ends like a derived one, because a later publish may get
    /// that id.
    ///
    /// # Errors
    /// Says what is wrong with the id.
    pub fn parse_chosen(text: &str) -> Result<Self, NameError> {
        let id = Self::parse(text)?;
        if id.derived_parts().is_some() {
            let reason = "ends like a derived id (`-p5-123`), which clients may not choose";
            return Err(NameError::new("run_id", text, reason));
        }
        Ok(id)
    }

    /// The id of a job whose derived id belongs to another run, from a stream that is gone: the derived id with the
    /// time at which the job was stored.
    pub fn derived_at(derived: &Self, at: Timestamp) -> Self {
        let text = format!("{derived}-at-{:x}", at.millis());
        // A queue's name is shortened if the whole would be longer than an id may be.
        let cut = text.len().saturating_sub(RUN_ID_MAX);
        Self(SmolStr::from(&text[cut..]))
    }

    /// The id of the run that follows it in a chain: `<id>-then`. A hash takes the place of an id that leaves no room.
    #[must_use]
    pub fn then(&self) -> Self {
        let text = format_smolstr!("{self}-then");
        Self(if text.len() > RUN_ID_MAX { format_smolstr!("{:016x}-then", fnv(self.0.bytes())) } else { text })
    }

    /// The lane and the sequence in a derived id; `None` for an id that a client chose, or that no run can have:
    /// sequences begin at 1, and are written without leading zeros.
    pub fn as_derived(&self) -> Option<(Lane, u64)> {
        let (lane, digits) = self.derived_parts()?;
        let sequence = digits.parse().ok().filter(|_| !digits.starts_with('0'))?;
        Some((lane, sequence))
    }

    /// The parts of an id that ends like a derived one.
    fn derived_parts(&self) -> Option<(Lane, &str)> {
        let (rest, digits) = self.0.rsplit_once('-')?;
        let (queue, priority) = rest.rsplit_once('-')?;
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let lane = Lane { queue: Queue::parse(queue).ok()?, priority: Priority::parse(priority).ok()? };
        is_number.then_some((lane, digits))
    }
}

impl Tenant {
    /// The tenant of clients that name none: `default`.
    pub fn default_tenant() -> Self {
        Self(SmolStr::new_static("default"))
    }
}

impl Queue {
    /// The queue of clients that name none: `main`.
    pub fn main() -> Self {
        Self(SmolStr::new_static("main"))
    }
}

/// How urgent a job is: 1 (most urgent) to 9.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Priority(u8);

impl Priority {
    /// The priority if a client leaves it out: 5.
    pub const DEFAULT: Self = Self(5);
    /// How many priorities there are.
    pub const COUNT: usize = 9;

    /// A priority from its number.
    ///
    /// # Errors
    /// Refuses everything but 1 to 9.
    pub fn new(number: u64) -> Result<Self, NameError> {
        match u8::try_from(number) {
            Ok(number @ 1..=9) => Ok(Self(number)),
            _ => Err(NameError::new("priority", &number.to_string(), "is not one of 1 (most urgent) to 9")),
        }
    }

    /// Reads a subject's token, `p1` to `p9`.
    ///
    /// # Errors
    /// Refuses every other text.
    pub fn parse(token: &str) -> Result<Self, NameError> {
        match token.as_bytes() {
            [b'p', digit @ b'1'..=b'9'] => Ok(Self(digit - b'0')),
            _ => Err(NameError::new("priority", token, "is not one of p1 (most urgent) to p9")),
        }
    }

    /// 1 to 9.
    #[must_use]
    pub fn number(self) -> u8 {
        self.0
    }

    /// All priorities, the most urgent first.
    pub fn all() -> impl Iterator<Item = Self> {
        (1..=9).map(Self)
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}", self.0)
    }
}

impl<'de> Deserialize<'de> for Priority {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(u64::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

schema!(Priority { "type": "integer", "minimum": 1, "maximum": 9 });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_name_is_refused_with_the_byte_and_the_reason() {
        let say = |result: Result<Tenant, NameError>| result.unwrap_err().to_string();
        assert_eq!(say(Tenant::parse("")), r#"tenant "" is empty"#);
        assert_eq!(say(Tenant::parse("a.b")), r#"tenant "a.b" has '.' at byte 1; allowed are A-Z a-z 0-9 _ -"#);
        assert_eq!(say(Tenant::parse("_sys")), r#"tenant "_sys" begins with `_`, which is kept for the system"#);
        assert!(Tenant::parse(&"x".repeat(64)).is_ok());
        assert!(Tenant::parse(&"x".repeat(65)).is_err());
    }

    #[test]
    fn only_what_may_be_met_in_a_subject_stands_for_what_cannot_be_read() {
        assert_eq!(serde_json::from_str::<Queue>("\"_\"").unwrap(), Queue::unreadable());
        let refused = |error: serde_json::Error| assert!(error.to_string().contains("kept for the system"), "{error}");
        refused(serde_json::from_str::<WebhookId>("\"_\"").unwrap_err());
        refused(serde_json::from_str::<BatchId>("\"_\"").unwrap_err());
        refused(serde_json::from_str::<Queue>("\"_x\"").unwrap_err());
    }

    #[test]
    fn a_type_is_tokens_joined_by_dots() {
        assert!(JobType::parse("email.send").is_ok());
        for wrong in ["", ".", "a.", ".a", "a..b", "a b", "a.*", "a.>", "ä"] {
            assert!(JobType::parse(wrong).is_err(), "{wrong:?}");
        }
        let why = |text| JobType::parse(text).unwrap_err().reason;
        assert_eq!(
            why("email send"),
            "has a blank at byte 5; allowed are A-Z a-z 0-9 _ - in parts joined by dots, as in email.send"
        );
        assert!(
            why("email.send/now").starts_with("has '/' at byte 10; allowed"),
            "counted from the beginning of the type"
        );
        assert_eq!(why("a..b"), "begins or ends with a dot, or has two in a row; write it as email.send");
        assert_eq!(why("email._x"), "has a part, \"_x\", that begins with `_`, which is kept for the system");
        assert_eq!(why(""), "is empty");
        let (whole, half) = ("x".repeat(64), "x".repeat(63));
        assert!(JobType::parse(&format!("{whole}.{half}")).is_ok());
        assert!(JobType::parse(&format!("{whole}.{whole}")).is_err(), "129 bytes");
        assert!(JobType::parse(&format!("{whole}x")).is_err(), "a token of 65 bytes");
    }

    #[test]
    fn a_derived_id_says_where_its_job_is_stored() {
        let lane = Lane { queue: Queue::parse("bulk-mail").unwrap(), priority: Priority::parse("p3").unwrap() };
        let id = RunId::derived(&lane, 77);
        assert_eq!(id.as_str(), "bulk-mail-p3-77");
        assert_eq!(id.as_derived(), Some((lane, 77)));
        assert!(RunId::parse_chosen("bulk-mail-p3-77").is_err());
        let largest = RunId::derived(&Lane::new(&Queue::main(), Priority::DEFAULT), u64::MAX);
        assert_eq!(largest.as_derived().map(|(_, sequence)| sequence), Some(u64::MAX));
        for nobodys in ["main-p5-0", "main-p1-00", "main-p5-07", "main-p5-18446744073709551616"] {
            assert_eq!(RunId::parse(nobodys).unwrap().as_derived(), None, "{nobodys}");
            assert!(RunId::parse_chosen(nobodys).is_err(), "{nobodys} ends like a derived id all the same");
        }
        assert!(RunId::parse_chosen("order-77").is_ok());
    }
}
