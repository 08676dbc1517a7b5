//! Finds what failures have in common: an error's text without the parts that differ from run to run.

use crate::{ErrorKind, JobType};

/// The maximum number of characters in a pattern; later text says more about one failure than about its kind.
const PATTERN_MAX: usize = 160;

/// After these words, and at the beginning of a message, a number of three digits is a status code, which distinguishes
/// causes apart.
const BEFORE_STATUS: [&str; 5] = ["http", "status", "code", "error", "returned"];

/// Fields of JSON that say what is wrong, and not with what.
const SAYING: [&str; 10] =
    ["error", "errors", "message", "msg", "code", "reason", "detail", "title", "type", "description"];

/// An error's text with its particulars taken out: words with digits in them become `#`, but for status codes; quoted
/// text becomes `"…"`, but for names of fields in JSON and what such fields as `message` have; white space one space.
/// Failures of one cause mostly share it.
pub fn pattern(message: &str) -> String {
    let mut out = String::with_capacity(message.len().min(PATTERN_MAX));
    for word in unquoted(message).split_whitespace() {
        if !out.is_empty() {
            out.push(' ');
        }
        // What surrounds a particular, such as brackets and commas, belongs to the pattern.
        let mut token = String::new();
        for c in word.chars() {
            if c.is_alphanumeric() || matches!(c, '-' | '_' | '…' | '"') {
                token.push(c);
            } else {
                put(&mut out, &mut token);
                out.push(c);
            }
        }
        put(&mut out, &mut token);
        if out.chars().count() >= PATTERN_MAX {
            break;
        }
    }
    out.chars().take(PATTERN_MAX).collect()
}

fn put(out: &mut String, token: &mut String) {
    let particular = token.chars().any(|c| c.is_ascii_digit()) && !is_status(out, token);
    match particular {
        // `1.2.3` is one particular, not three.
        true if out.ends_with("#.") || out.ends_with("#:") => {
            out.pop();
        }
        true => out.push('#'),
        false => out.push_str(token),
    }
    token.clear();
}

/// Whether `token` is a status code as HTTP and NATS services have them, after the text `before`.
fn is_status(before: &str, token: &str) -> bool {
    let has_form =
        token.len() == 3 && matches!(token.as_bytes()[0], b'1'..=b'5') && token.bytes().all(|b| b.is_ascii_digit());
    // `10.200` is not a status, nor is `order/404`.
    let stands_alone = before.chars().next_back().is_none_or(|c| matches!(c, ' ' | '(' | '[' | '=' | ':'));
    let word = before.trim_end_matches(|c: char| !c.is_alphanumeric()).rsplit(|c: char| !c.is_alphanumeric()).next();
    let word = word.unwrap_or_default().to_ascii_lowercase();
    has_form && stands_alone && (word.is_empty() || BEFORE_STATUS.contains(&word.as_str()))
}

fn unquoted(message: &str) -> String {
    let mut out = String::with_capacity(message.len());
    // The field whose value comes next.
    let (mut rest, mut name) = (message, "");
    while let Some((before, after)) = rest.split_once('"') {
        out.push_str(before);
        match after.split_once('"') {
            Some((quoted, beyond)) => {
                let is_name = beyond.trim_start().starts_with(':');
                let is_kept = is_name || before.trim() == ":" && SAYING.contains(&name);
                out.push('"');
                out.push_str(if is_kept { quoted } else { "…" });
                out.push('"');
                name = if is_name { quoted } else { "" };
                rest = beyond;
            }
            None => {
                rest = after;
                break;
            }
        }
    }
    out.push_str(rest);
    out
}

/// A short name for failures of one job type, error kind and pattern: 16 hexadecimal digits (FNV-1a, 64 bits).
pub fn fingerprint(job_type: &JobType, kind: ErrorKind, pattern: &str) -> String {
    let texts = [job_type.as_str(), "\0", kind.as_str(), "\0", pattern];
    format!("{:016x}", fnv(texts.into_iter().flat_map(str::bytes)))
}

/// The hash FNV-1a in 64 bits.
pub(crate) fn fnv(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn particulars_are_taken_out() {
        for (message, wanted) in [
            ("order 4711 is gone", "order # is gone"),
            ("user 7f3a-22 (id=12) not found", "user # (id=#) not found"),
            ("cannot reach 10.0.0.1:8080", "cannot reach #"),
            (r#"no customer "Anna 3""#, r#"no customer "…""#),
            (
                r#"{"code": "card_declined", "message":"Card 4711 was declined.","customer":"Anna"}"#,
                r#"{"code": "card_declined", "message":"Card # was declined.","customer":"…"}"#,
            ),
            (r#"field "name": "Anna" is empty"#, r#"field "name": "…" is empty"#),
            ("two\n  lines", "two lines"),
            ("503: try again", "503: try again"),
            ("HTTP 404 for order 404", "HTTP 404 for order #"),
            ("the service returned status=502 after 300 ms", "the service returned status=502 after # ms"),
            ("error 10.200.1.1", "error #"),
            ("code 99", "code #"),
        ] {
            assert_eq!(pattern(message), wanted);
        }
        assert_eq!(pattern(&"ä ".repeat(500)).chars().count(), PATTERN_MAX);
    }

    #[test]
    fn one_cause_has_one_fingerprint() {
        let job_type = JobType::parse("t").unwrap();
        let of = |message: &str, kind| fingerprint(&job_type, kind, &pattern(message));
        assert_eq!(of("order 1 is gone", ErrorKind::Permanent), of("order 22 is gone", ErrorKind::Permanent));
        assert_ne!(of("order 1 is gone", ErrorKind::Permanent), of("order 1 is gone", ErrorKind::Retryable));
    }
}
