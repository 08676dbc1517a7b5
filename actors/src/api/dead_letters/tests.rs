//! Dead letters as the API shows them: which stand, how they are grouped, and what is left out of those that are too
//! large for an answer.

use bytes::Bytes;
use longshore_backbone::Headers;
use longshore_domain::settlement::Settlement;
use longshore_domain::{ErrorKind, Failure, Job};
use serde_json::Value;

use super::*;

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

/// A run that died of this at a time.
fn died(run: &str, job_type: &str, (kind, message): (ErrorKind, &str), when: i64) -> Run {
    let job = Job { tenant: Tenant::parse("acme").unwrap(), ..crate::tests::job(job_type, run) };
    let mut run = Run::new(&job, 3, at(0));
    run.begin(1, &"n1".into(), at(1));
    run.settle(Settlement::Dead(Failure::new(kind, message)), at(when));
    run
}

fn dead() -> Run {
    died("main-p5-7", "mail.send", (ErrorKind::Permanent, "no such address"), 500)
}

fn dead_letter(run: Run) -> StoredDeadLetter {
    let mut headers = Headers::new();
    headers.insert("X-Own", "1");
    headers.insert(names::RUN_ID, run.run_id.as_str());
    StoredDeadLetter { sequence: 3, run, headers, payload: Bytes::from_static(&[0, 255]), left_out: None }
}

fn json(dead_letter: &Encoded<DeadLetter>) -> Value {
    serde_json::from_slice(dead_letter.as_bytes()).unwrap()
}

#[test]
fn a_letter_stands_until_its_run_goes_on() {
    let is_there = |found: Option<Run>| stands(found, dead_letter(dead())).map(|(_, run)| run);
    assert_eq!(is_there(None).unwrap().round, 1, "its record is gone: the letter has what there is");
    let whole = Run { tags: vec!["from the record".to_owned()], ..dead() };
    assert_eq!(is_there(Some(whole.clone())).unwrap().tags, whole.tags, "the record has the whole history");
    let (mut replayed, mut discarded) = (dead(), dead());
    replayed.replay(at(600));
    discarded.discard(at(600));
    assert!(is_there(Some(replayed)).is_none() && is_there(Some(discarded)).is_none());
    // Its lane was made anew, and a later job got its id.
    let another = Run { origin: at(900), tags: vec!["another".to_owned()], ..dead() };
    assert_eq!(
        is_there(Some(another)).unwrap().tags,
        [""; 0],
        "it is shown as it was, without the other run's history"
    );
}

#[test]
fn a_letter_shows_its_run_its_headers_and_its_payload() {
    let shown = json(&show(&dead_letter(dead()), &dead()));
    assert_eq!(shown["run_id"], "main-p5-7");
    assert_eq!(shown["state"], "dead");
    assert_eq!(shown["error"]["message"], "no such address");
    assert_eq!(shown["payload_base64"], "AP8=");
    assert_eq!(shown["headers"], serde_json::json!({"X-Own": "1"}), "its id is said already");
    assert_eq!(shown["fingerprint"], mark(&dead()).2);
}

#[test]
fn a_letter_whose_payload_was_not_kept_says_how_large_it_was() {
    let large = StoredDeadLetter { left_out: Some(900_000), payload: Bytes::new(), ..dead_letter(dead()) };
    let shown = json(&show(&large, &dead()));
    assert_eq!((&shown["payload_bytes"], shown.get("payload_base64")), (&Value::from(900_000), None));
}

#[test]
fn a_letter_that_is_too_large_for_an_answer_loses_its_payload_first_then_its_history() {
    let mut run = dead();
    for round in 2..200 {
        run.replay(at(600));
        run.begin(1, &"n1".into(), at(700));
        run.settle(Settlement::Dead(Failure::new(ErrorKind::Permanent, "again")), at(700 + round));
    }
    let large = StoredDeadLetter { payload: vec![7; 50_000].into(), ..dead_letter(run.clone()) };
    let limited = |max| {
        let shown = within(&large, &run, show(&large, &run), max);
        assert!(shown.size() <= max, "{} of {max}", shown.size());
        json(&shown)
    };
    let whole = show(&large, &run).size();
    assert!(limited(whole).get("payload_base64").is_some());
    let without_payload = limited(whole - 1);
    assert_eq!(
        (&without_payload["payload_bytes"], without_payload.get("payload_base64")),
        (&Value::from(50_000), None)
    );
    let attempts = |shown: &Value| shown["attempts"].as_array().unwrap().len();
    assert_eq!(attempts(&without_payload), 199, "the history is whole");
    let short = limited(5_000);
    assert!(attempts(&short) > 0 && attempts(&short) < 199);
    assert_eq!(short["attempts_left_out"].as_u64().unwrap() as usize + attempts(&short), 199);
    assert_eq!((&short["run_id"], &short["headers"]["X-Own"]), (&Value::from("main-p5-7"), &Value::from("1")));
}

#[test]
fn letters_are_grouped_by_the_cause_of_the_failure() {
    let timeout = |message| (ErrorKind::Timeout, message);
    let runs = [
        died("r1", "mail.send", timeout("no answer from 10.0.0.1 within 30 s"), 700),
        died("r2", "mail.send", timeout("no answer from 10.0.0.2 within 45 s"), 500),
        died("r3", "mail.send", timeout("no answer from 10.9.9.9 within 30 s"), 900),
        died("r4", "mail.send", (ErrorKind::Permanent, "no answer from 10.0.0.1 within 30 s"), 100),
        died("r5", "sms.send", timeout("no answer from 10.0.0.1 within 30 s"), 100),
        died("r6", "mail.send", timeout("no such address"), 100),
    ];
    let mut groups = BTreeMap::new();
    for run in runs {
        assert!(count(&mut groups, run, at(2 * 3_600_000 + 600)));
    }
    assert_eq!(groups.len(), 4, "particulars make no group; kind, type and text do");
    let fingerprint = mark(&died("r", "mail.send", timeout("no answer from 1 within 2 s"), 1)).2;
    let group = groups.remove(&fingerprint).unwrap();
    assert_eq!((group.count, group.first, group.last), (3, at(500), at(900)));
    assert_eq!((group.hours.len(), &group.hours[20..]), (24, &[0, 1, 2, 0][..]), "two died less than two hours ago");
    assert_eq!((group.example.run_id.as_str(), group.pattern.as_str()), ("r1", "no answer from # within # s"));
    assert_eq!(group.example.error.unwrap().message, "no answer from 10.0.0.1 within 30 s");
}

#[test]
fn one_call_has_a_bounded_number_of_groups() {
    let (mut groups, of) = (BTreeMap::new(), |job_type: &str| died("r", job_type, (ErrorKind::Timeout, "late"), 1));
    for number in 0..GROUPS {
        assert!(count(&mut groups, of(&format!("type-{number}")), at(1)));
    }
    assert!(!count(&mut groups, of("one-more"), at(1)) && count(&mut groups, of("type-7"), at(1)));
    assert_eq!((groups.len(), groups.values().map(|group| group.count).max()), (GROUPS, Some(2)));
}

#[test]
fn a_page_has_at_most_as_many_entries_as_the_contract_says() {
    assert_eq!([limit(None).unwrap(), limit(Some(1)).unwrap(), limit(Some(500)).unwrap()], [None, Some(1), Some(500)]);
    for wrong in [0, 501] {
        assert_eq!(limit(Some(wrong)).unwrap_err().message, "limit: is not one of 1 to 500");
    }
}
