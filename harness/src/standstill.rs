//! How long work stood still around a fault, according to the event log. Pure.

use std::time::Duration;

use jiff::Timestamp;

use crate::stored::Logged;
use crate::wire::EventName;

/// For each fault, the longest time without a start of an attempt between that fault and the next one. The number means
/// something only if jobs were waiting all the while.
pub fn standstills(events: &[Logged], faults: &[Timestamp]) -> Vec<Duration> {
    let starts = events.iter().filter(|logged| logged.event.event == EventName::Started);
    let mut starts: Vec<Timestamp> = starts.map(|logged| logged.event.at).collect();
    starts.sort_unstable();
    let until = faults.iter().skip(1).copied().chain([Timestamp::MAX]);
    let of = |(fault, until): (Timestamp, Timestamp)| {
        let gaps = starts.windows(2).filter(|pair| pair[1] > fault && pair[0] < until);
        let longest = gaps.map(|pair| pair[1].duration_since(pair[0])).max();
        Duration::try_from(longest.unwrap_or_default()).unwrap_or_default()
    };
    faults.iter().copied().zip(until).map(of).collect()
}

/// Durations for people: `0.4 s, 1.2 s`.
pub fn in_seconds(durations: &[Duration]) -> String {
    let each: Vec<String> = durations.iter().map(|duration| format!("{:.1} s", duration.as_secs_f64())).collect();
    each.join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn started(second: i64) -> Logged {
        let event = json!({
            "id": second.to_string(), "event": "started", "run_id": "r", "tenant": "t", "queue": "main", "priority": 5,
            "type": "work", "at": Timestamp::from_second(second).unwrap().to_string(),
        });
        Logged { sequence: 1, event: serde_json::from_value(event).unwrap() }
    }

    #[test]
    fn the_longest_pause_after_each_fault_counts() {
        let events: Vec<Logged> = [12, 1, 2, 3, 10, 11, 15, 16, 90].into_iter().map(started).collect();
        let at = |second| Timestamp::from_second(second).unwrap();
        let found = standstills(&events, &[at(4), at(13)]);
        assert_eq!(found, [Duration::from_secs(7), Duration::from_secs(74)]);
        assert_eq!(standstills(&events, &[at(4), at(12)])[0], Duration::from_secs(7));
        assert_eq!(standstills(&[], &[at(4)]), [Duration::ZERO]);
        assert_eq!(in_seconds(&found), "7.0 s, 74.0 s");
    }
}
