//! What each key was served, whose jobs are moved, and which node moves them.

use longshore_domain::Tenant;
use longshore_domain::fairness::FairBy;

use super::*;

fn key(tenant: &str) -> FairnessKey {
    FairnessKey::Tenant(Tenant::parse(tenant).unwrap())
}

/// What a node says that counts since `since_ms`: so many jobs of each tenant from their lane, and returned ones.
fn says(node: &str, since_ms: i64, of: &[(&str, u64, u64)]) -> DeliveryCounts {
    let count = |(tenant, from_lane, returned): &(&str, u64, u64)| DeliveryCount {
        priority: Priority::DEFAULT,
        key: key(tenant),
        from_lane: *from_lane,
        returned: *returned,
    };
    DeliveryCounts { by: FairBy::Tenant, node: node.to_owned(), since_ms, of: of.iter().map(count).collect() }
}

fn of(served: &Served, tenant: &str) -> Option<[u64; 2]> {
    served.get(&(Priority::DEFAULT, key(tenant))).copied()
}

#[test]
fn a_tenant_was_served_what_all_nodes_were_delivered_since_the_last_look() {
    let mut answers = Answers::new();
    let served = served_since(&mut answers, vec![says("n1", 7, &[("a", 10, 1)]), says("n2", 8, &[("a", 5, 0)])]);
    assert_eq!(of(&served, "a"), Some([15, 1]));
    let served =
        served_since(&mut answers, vec![says("n1", 7, &[("a", 12, 1), ("b", 4, 0)]), says("n2", 8, &[("a", 5, 2)])]);
    assert_eq!((of(&served, "a"), of(&served, "b")), (Some([2, 2]), Some([4, 0])));
}

/// Given a node that was started anew, or stopped counting meanwhile, when it says what it was delivered, then all of
/// that is new: nothing is taken off for what its former life had counted.
#[test]
fn a_node_that_counts_anew_is_believed_in_full() {
    let mut answers = Answers::new();
    served_since(&mut answers, vec![says("n1", 7, &[("a", 100, 0)])]);
    let served = served_since(&mut answers, vec![says("n1", 9, &[("a", 3, 0)])]);
    assert_eq!(of(&served, "a"), Some([3, 0]));
}

#[test]
fn what_a_node_that_answers_too_late_was_delivered_is_counted_once_when_it_answers_again() {
    let mut answers = Answers::new();
    served_since(&mut answers, vec![says("n1", 7, &[("a", 10, 0)]), says("n2", 7, &[("a", 10, 0)])]);
    let served = served_since(&mut answers, vec![says("n1", 7, &[("a", 11, 0)])]);
    assert_eq!(of(&served, "a"), Some([1, 0]), "the other did not answer in time");
    let served = served_since(&mut answers, vec![says("n1", 7, &[("a", 11, 0)]), says("n2", 7, &[("a", 16, 0)])]);
    assert_eq!(of(&served, "a"), Some([6, 0]));
}

#[test]
fn only_the_first_node_by_name_moves_jobs_and_one_that_knows_of_none_does() {
    assert!(is_first_of(["n2", "n1", "n3"].into_iter(), "n1"));
    assert!(!is_first_of(["n2", "n1", "n3"].into_iter(), "n2"));
    assert!(is_first_of([].into_iter(), "n2"));
    assert!(is_first_of(["n3"].into_iter(), "n2"), "it has just come and is not among them yet");
}

#[test]
fn jobs_that_the_lane_delivers_in_three_looks_are_left_alone_and_at_least_500() {
    assert_eq!(beyond(1_000, 1_000), 1_500, "a lane that stands still");
    assert_eq!(beyond(1_000, 1_100), 1_600);
    assert_eq!(beyond(1_000, 3_000), 9_000, "3 times the 2,000 of the last look");
    assert_eq!(beyond(3_000, 1_000), 1_500, "its consumer was made anew");
}

#[test]
fn keys_that_are_owed_nothing_are_left_alone_and_those_that_are_served_need_no_lookup() {
    let mut lane = LaneShares::default();
    let far = |jobs| Owed { if_far: jobs, if_near: 9, is_near: false };
    let near = |jobs| Owed { if_far: 9, if_near: jobs, is_near: true };
    let owed = [("far", far(3)), ("near", near(2)), ("paid", far(0)), ("served", near(0))];
    let (wanted, unknown) = lane.sort(owed.map(|(name, owed)| (key(name), owed)).into(), 500);
    let wanted: Vec<_> = wanted.into_iter().map(|wanted| (wanted.key, wanted.jobs, wanted.from)).collect();
    assert_eq!(wanted, [(key("near"), 2, 500)]);
    assert_eq!(unknown, [(key("far"), far(3))]);
}

/// Given more tenants that are owed jobs than one look finds the first job of, when looks follow each other, then each
/// tenant has its turn before any has a second one.
#[test]
fn with_very_many_tenants_each_is_looked_up_in_its_turn() {
    let owed: BTreeMap<FairnessKey, Owed> = (0..600)
        .map(|number| (key(&format!("t{number:03}")), Owed { if_far: 1, if_near: 0, is_near: false }))
        .collect();
    let (mut lane, mut seen) = (LaneShares::default(), Vec::new());
    for _ in 0..3 {
        let (_, unknown) = lane.sort(owed.clone(), 500);
        assert_eq!(unknown.len(), LOOKUPS);
        seen.extend(unknown.into_iter().map(|(key, _)| key));
    }
    seen.truncate(600);
    seen.sort();
    assert!(seen.iter().eq(owed.keys()));
    let (_, unknown) = lane.sort(owed.into_iter().take(LOOKUPS).collect(), 500);
    assert_eq!((unknown.len(), lane.last), (LOOKUPS, None), "all had their turn");
}
