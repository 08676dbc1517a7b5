//! How many jobs wait: a lane holds running jobs as well, until their end.

use longshore_domain::Priority;

use super::*;

fn tenant(name: &str) -> Tenant {
    Tenant::parse(name).unwrap()
}

fn stored(queue: &str, jobs: u64, of_tenants: &[(&str, u64)]) -> (Queue, StoredJobs) {
    let by_tenant = of_tenants.iter().map(|(name, jobs)| (tenant(name), *jobs)).collect();
    (Queue::parse(queue).unwrap(), StoredJobs { jobs, by_tenant })
}

/// A node that works on so many jobs of a queue, and so many of a tenant.
struct Node {
    queues: BTreeMap<String, QueueLoad>,
    tenants: BTreeMap<Tenant, usize>,
}

impl Node {
    fn works_on((queue, most_urgent, least): (&str, usize, usize), (of, jobs): (&str, usize)) -> Self {
        let mut by_priority = [0; Priority::COUNT];
        (by_priority[0], by_priority[Priority::COUNT - 1]) = (most_urgent, least);
        // It has pulled more than it has begun.
        let load =
            QueueLoad { concurrency: 64, running: 50, by_priority, oldest_buffered: None, by_tenant: BTreeMap::new() };
        Self { queues: [(queue.to_owned(), load)].into(), tenants: [(tenant(of), jobs)].into() }
    }

    fn begun(&self) -> Begun<'_> {
        Begun { of_queues: &self.queues, of_tenants: &self.tenants }
    }
}

#[test]
fn jobs_that_have_begun_on_any_node_wait_no_more() {
    let nodes = [Node::works_on(("main", 2, 1), ("acme", 3)), Node::works_on(("main", 0, 4), ("acme", 1))];
    let begun: Vec<Begun<'_>> = nodes.iter().map(Node::begun).collect();
    let lanes = [stored("main", 20, &[("acme", 12), ("other", 8)]), stored("mail", 5, &[("acme", 5)])];
    let counts = waiting(lanes.into_iter(), &begun);
    let of_queue = |name: &str| counts[&RoomScope::Queue(Queue::parse(name).unwrap())];
    assert_eq!((of_queue("main"), of_queue("mail")), (13, 5), "a job that a node has buffered still waits");
    let of_tenant = |name: &str| counts[&RoomScope::Tenant(tenant(name))];
    assert_eq!((of_tenant("acme"), of_tenant("other")), (13, 8), "a tenant's jobs are counted in all queues together");
}

#[test]
fn a_job_that_ended_between_the_two_counts_makes_no_debt() {
    let nodes = [Node::works_on(("main", 9, 0), ("acme", 9))];
    let begun: Vec<Begun<'_>> = nodes.iter().map(Node::begun).collect();
    let counts = waiting([stored("main", 4, &[("acme", 4)])].into_iter(), &begun);
    assert!(counts.len() == 2 && counts.values().all(|waiting| *waiting == 0), "{counts:?}");
}
