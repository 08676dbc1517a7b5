//! Subjects by which waiting jobs are moved forward in their queue.

use longshore_domain::{Lane, Priority, Queue};

use super::Names;

impl Names {
    /// The subject of the copy of a job that is taken out of its lane. It has fewer tokens than that of a parked job,
    /// so no filter over those takes it; and no tenant has such a name.
    #[must_use]
    pub fn copied(&self, lane: &Lane, sequence: u64) -> String {
        format!("{}.parked._copied.{lane}.{sequence}", self.namespace)
    }

    /// A filter over the copies of a queue's jobs.
    #[must_use]
    pub fn copies_of(&self, queue: &Queue) -> String {
        format!("{}.parked._copied.{queue}.*.*", self.namespace)
    }

    /// The lane of a copied job, and the sequence that it had there.
    #[must_use]
    pub fn read_copied(&self, subject: &str) -> Option<(Lane, u64)> {
        let rest = subject.strip_prefix(&*self.namespace)?.strip_prefix(".parked._copied.")?;
        let mut tokens = rest.split('.');
        let lane = Lane { queue: Queue::parse(tokens.next()?).ok()?, priority: Priority::parse(tokens.next()?).ok()? };
        Some((lane, tokens.next()?.parse().ok()?))
    }

    /// The subject on which nodes ask each other how many jobs of a queue's lanes they were delivered.
    #[must_use]
    pub fn delivered(&self, queue: &Queue) -> String {
        format!("{}.nodes._sys.delivered.{queue}", self.namespace)
    }
}

#[cfg(test)]
mod tests {
    use longshore_domain::{JobType, Tenant};

    use super::*;

    #[test]
    fn no_filter_over_parked_jobs_takes_a_copy() {
        let names = Names::new("longshore");
        let lane = Lane::new(&Queue::main(), Priority::DEFAULT);
        let subject = names.copied(&lane, 77);
        assert_eq!(subject, "longshore.parked._copied.main.p5.77");
        assert_eq!(names.read_copied(&subject), Some((lane.clone(), 77)));
        assert_eq!((names.read_job(&subject), names.read_parked_key(&subject)), (None, None));
        assert!(Tenant::parse("_copied").is_err());
        let job_type = JobType::parse("t").unwrap();
        let filters =
            [names.parked_where(None, Some(&lane.queue), None), names.parked_where(None, None, Some(&job_type))];
        for filter in filters {
            let tokens = |subject: &str| subject.split('.').count();
            assert!(tokens(&subject) < tokens(&filter), "{filter}");
        }
    }
}
