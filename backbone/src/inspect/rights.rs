//! What a user may publish and subscribe to, and what a node needs.

use longshore_domain::{Queue, QueueLane};
use serde::Deserialize;

use crate::handlers::falls_under;
use crate::wire::subject::Names;

/// By which a user asks the server what it may do. A node needs no such right: without it, nothing is checked.
pub const USER_INFO: &str = "$SYS.REQ.USER.INFO";

/// The subjects that a user may publish and subscribe to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Permissions {
    /// What it may publish.
    pub publish: Permission,
    /// What it may subscribe to.
    pub subscribe: Permission,
}

/// Subjects that are allowed and denied; none allowed: all are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Permission {
    /// Allowed.
    pub allow: Vec<String>,
    /// Denied, also if they are allowed.
    pub deny: Vec<String>,
}

impl Names {
    /// The subjects to which a node of these queues publishes, and to which it subscribes: what docs/operations.md has
    /// its permissions grant.
    pub fn rights_of_a_node<'q>(&self, queues: impl Iterator<Item = &'q Queue>) -> (Vec<String>, Vec<String>) {
        let own = self.namespace();
        let mut publish: Vec<String> = vec![format!("{own}.>")];
        publish.extend(
            ["runs", "idempotency", "control", "schedules", "concurrency", "checkpoints"]
                .map(|bucket| self.key(bucket, ">")),
        );
        let asked = [
            "INFO",
            "STREAM.NAMES",
            "STREAM.INFO.*",
            "STREAM.CREATE.*",
            "STREAM.UPDATE.*",
            "CONSUMER.CREATE.>",
            "CONSUMER.MSG.NEXT.>",
            "DIRECT.GET.>",
            "CONSUMER.INFO.>",
            "CONSUMER.LEADER.STEPDOWN.*.work",
            "STREAM.MSG.GET.*",
        ];
        publish.extend(asked.map(|request| format!("$JS.API.{request}")));
        let lanes = queues.flat_map(|queue| QueueLane::all().map(|lane| self.lane_stream(queue, lane)));
        let deleted = [self.schedules_stream(), self.dlq_stream(), self.parked_stream()].into_iter().chain(lanes);
        publish.extend(deleted.map(|stream| format!("$JS.API.STREAM.MSG.DELETE.{stream}")));
        publish.push(format!("$JS.API.CONSUMER.DELETE.{}.*", self.events_stream()));
        publish.push(format!("$JS.API.STREAM.PURGE.{}", self.bucket_stream("checkpoints")));
        publish.extend(["$JS.ACK.>", "$SRV.INFO", "$SYS.REQ.ACCOUNT.PING.CONNZ", "_INBOX.>"].map(str::to_owned));
        let planes = ["api", "nodes", "cancel", "events", "ends", "holder", "work"];
        let mut subscribe: Vec<String> = planes.map(|plane| format!("{own}.{plane}.>")).to_vec();
        subscribe.extend(["$SRV.>", "_INBOX.>"].map(str::to_owned));
        subscribe.push(self.key("control", "holds.>"));
        (publish, subscribe)
    }
}

impl Permission {
    /// Those of these subjects that are not allowed, or not wholly.
    pub fn lacks(&self, needed: &[String]) -> Vec<String> {
        let is_lacking = |subject: &&String| {
            let covers = |allowed: &String| falls_under(subject, plain(allowed));
            let allowed = self.allow.is_empty() || self.allow.iter().any(covers);
            !allowed || self.deny.iter().any(|denied| overlaps(plain(denied), subject))
        };
        needed.iter().filter(is_lacking).cloned().collect()
    }
}

/// The subject of a right. One to subscribe may be bound to a queue group, which stands behind it.
fn plain(right: &str) -> &str {
    right.split(' ').next().unwrap_or_default()
}

/// Whether a subject can fit both.
fn overlaps(one: &str, other: &str) -> bool {
    let (mut one, mut other) = (one.split('.'), other.split('.'));
    loop {
        match (one.next(), other.next()) {
            (Some(">"), Some(_)) | (Some(_), Some(">")) | (None, None) => return true,
            (Some(a), Some(b)) if a == b || a == "*" || b == "*" => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_rights_of_a_node_are_those_of_the_document() {
        const OPERATIONS: &str = include_str!("../../../docs/operations.md");
        let block = OPERATIONS.split("```text\n").find(|block| block.starts_with("publish:")).unwrap();
        let (publish, subscribe) = block.split("```").next().unwrap().split_once("subscribe:").unwrap();
        let main = Queue::main();
        let names = Names::new("longshore");
        let lanes = |word: &str| -> Vec<String> {
            match word.strip_suffix("_P1") {
                Some(_) => {
                    let lane =
                        |lane: QueueLane| format!("$JS.API.STREAM.MSG.DELETE.{}", names.lane_stream(&main, lane));
                    QueueLane::all().map(lane).collect()
                }
                None => vec![word.to_owned()],
            }
        };
        let granted = |text: &str| -> BTreeSet<String> {
            text.split_whitespace().filter(|word| word.contains('.')).flat_map(lanes).collect()
        };
        let (may_publish, may_subscribe) = names.rights_of_a_node([&main].into_iter());
        let examples = ["_INBOX_acme.>".to_owned()];
        let mut documented = granted(publish);
        examples.iter().for_each(|example| assert!(documented.remove(example)));
        assert_eq!(documented, may_publish.into_iter().collect());
        assert_eq!(granted(subscribe), may_subscribe.into_iter().collect());
    }

    #[test]
    fn what_is_not_wholly_allowed_is_lacking() {
        let permission = |allow: &[&str], deny: &[&str]| Permission {
            allow: allow.iter().map(ToString::to_string).collect(),
            deny: deny.iter().map(ToString::to_string).collect(),
        };
        let lacks = |allow: &[&str], deny: &[&str], needed: &str| {
            !permission(allow, deny).lacks(&[needed.to_owned()]).is_empty()
        };
        for (allow, deny, needed, expected) in [
            (&[][..], &[][..], "a.>", false),
            (&["a.>"], &[], "a.>", false),
            (&[">"], &[], "$JS.API.INFO", false),
            (&["a.*"], &[], "a.b", false),
            (&["a.*"], &[], "a.>", true),
            (&["a.b"], &[], "a.*", true),
            (&["a.b.c"], &[], "a.b", true),
            (&["a.b q"], &[], "a.b", false),
            (&[], &["a.b"], "a.>", true),
            (&[], &["a.*.c"], "a.b.>", true),
            (&[], &["b.>"], "a.>", false),
            (&[], &["a"], "a.b", false),
        ] {
            assert_eq!(lacks(allow, deny, needed), expected, "{allow:?} {deny:?} {needed}");
        }
    }
}
