//! The limits of a node without a cluster: what a job takes, what goes back, what is held.

use std::collections::BTreeMap;

use longshore_domain::limit::{Lease, Window};
use longshore_domain::{JobOptions, Priority, Queue, RunId};

use super::*;

fn limit(rate: u32) -> RateLimit {
    RateLimit { rate, per: Duration::from_secs(1), burst: rate, window: Window::Bucket }
}

/// Type `own` has a limit, `shared` and `both` share another.
fn limits() -> Arc<Limits> {
    let policy = |rate_limit, limit: Option<&str>| TypePolicy {
        rate_limit,
        limit: limit.map(SmolStr::new),
        ..TypePolicy::default()
    };
    let types = [
        ("own", policy(Some(limit(100)), None)),
        ("shared", policy(None, Some("crm"))),
        ("both", policy(Some(limit(100)), Some("crm"))),
    ];
    let types = types.into_iter().map(|(name, policy)| (JobType::parse(name).unwrap(), policy)).collect();
    let policies = Policies { types, limits: BTreeMap::from([("crm".into(), limit(50))]), ..Policies::default() };
    Arc::new(Limits::new("n1", Arc::new(policies), Arc::default()))
}

fn job(tenant: &str, job_type: &str, key: Option<&str>) -> Job {
    let options = key.map(|key| Box::new(JobOptions { limit_key: Some(key.to_owned()), ..JobOptions::default() }));
    Job {
        tenant: Tenant::parse(tenant).unwrap(),
        queue: Queue::main(),
        priority: Priority::DEFAULT,
        job_type: JobType::parse(job_type).unwrap(),
        run_id: RunId::parse("r").unwrap(),
        options,
    }
}

fn ids(limits: &Limits, job: &Job) -> Vec<String> {
    let key = KindKey::of(job.options.as_deref());
    limits.ids(&job.tenant, &job.job_type, &key).iter().map(|(id, _)| id.to_string()).collect()
}

/// The cluster grants what the node asks for.
fn grant(limits: &Limits, tokens: u32) {
    let (now, time) = (Instant::now(), limits.time());
    let mut known = limits.known();
    let asking: Vec<LimitId> = known.asking.drain().collect();
    for id in asking {
        let holder = known.holders.get_mut(&id).unwrap();
        let ask = holder.ask(now).unwrap();
        let lease = Lease { tokens, from: time, until: time.plus(Duration::from_secs(10)) };
        holder.granted(ask.number, lease, (now, time), 1);
    }
}

#[test]
fn a_key_is_its_tenants_own_and_chooses_the_types_limit_before_the_shared_one() {
    let limits = limits();
    let of = |job_type, key| ids(&limits, &job("t", job_type, key));
    assert_eq!(of("own", None), ["all.type.own"]);
    assert_eq!(of("shared", None), ["all.name.crm"]);
    assert_eq!(of("both", None), ["all.type.both", "all.name.crm"]);
    assert!(of("both", Some("k"))[0].starts_with("key.t.") && of("both", Some("k"))[1] == "all.name.crm");
    assert!(of("shared", Some("k"))[0].starts_with("key.t.") && of("shared", Some("k")).len() == 1);
    assert_ne!(ids(&limits, &job("t", "own", Some("k"))), ids(&limits, &job("u", "own", Some("k"))));
    assert!(of("free", Some("k")).is_empty() && !limits.may_bite(&JobType::parse("free").unwrap()));
}

#[test]
fn tokens_of_all_limits_are_taken_or_none() {
    let limits = limits();
    let both = job("t", "both", None);
    for _ in 0..2 {
        // The one limit grants, then the other.
        assert!(limits.take(&both, Instant::now()).is_err());
        grant(&limits, 1);
    }
    let tokens = limits.take(&both, Instant::now()).unwrap().unwrap();
    assert!(limits.take(&both, Instant::now()).is_err(), "both are used up");
    drop(tokens);
    let tokens = limits.take(&both, Instant::now()).unwrap().unwrap();
    assert!(tokens.spend(Instant::now()), "what was not spent went back");
    assert!(limits.take(&both, Instant::now()).is_err());
    let left = |name: &str| {
        let known = limits.known();
        let holder = known.holders.iter().find(|(id, _)| id.to_string() == name).unwrap().1;
        holder.at_hand(Instant::now())
    };
    assert_eq!((left("all.type.both"), left("all.name.crm")), (1, 0), "the first was granted twice, and used once");
}

#[test]
fn a_request_whose_answer_was_lost_with_the_limiter_is_sent_again() {
    let limits = limits();
    assert!(limits.take(&job("t", "own", None), Instant::now()).is_err());
    let asking = || limits.known().asking.drain().count();
    assert_eq!(asking(), 1);
    limits.known().holders.values_mut().for_each(|holder| assert!(holder.ask(Instant::now()).is_some()));
    assert!(limits.take(&job("t", "own", None), Instant::now()).is_err());
    assert_eq!(asking(), 0, "it is on its way");
    limits.ask_again();
    assert_eq!(asking(), 1);
}

#[test]
fn tokens_are_good_for_their_lease_only() {
    let limits = limits();
    let own = job("t", "own", None);
    assert!(limits.take(&own, Instant::now()).is_err());
    grant(&limits, 2);
    let tokens = limits.take(&own, Instant::now()).unwrap().unwrap();
    assert!(!tokens.spend(Instant::now() + Duration::from_secs(1)));
}

#[test]
fn a_hold_stops_its_key_or_its_type_for_its_tenant() {
    let limits = limits();
    let is_held =
        |job: &Job| limits.held_until(&job.tenant, &job.job_type, &KindKey::of(job.options.as_deref())).is_some();
    limits.hold(&job("t", "free", Some("k")), Duration::from_secs(30));
    assert!(is_held(&job("t", "free", Some("k"))) && limits.may_bite(&JobType::parse("free").unwrap()));
    for other in
        [job("t", "free", None), job("t", "free", Some("l")), job("u", "free", Some("k")), job("t", "own", Some("k"))]
    {
        assert!(!is_held(&other), "{other:?}");
    }
    limits.hold(&job("t", "shared", Some("k")), Duration::from_secs(30));
    assert!(is_held(&job("t", "shared", Some("k"))));
    let until = limits.time().plus(Duration::from_secs(5));
    limits.add_hold(&Hold {
        what: limits.scope_of_hold(
            &job("t", "free", Some("k")).tenant,
            &JobType::parse("free").unwrap(),
            &KindKey::of_limit_key(Some("k")),
        ),
        until,
    });
    let kept = limits.held_until(
        &Tenant::parse("t").unwrap(),
        &JobType::parse("free").unwrap(),
        &KindKey::of_limit_key(Some("k")),
    );
    assert!(kept.unwrap() > until, "the longer hold counts");
}
