//! The limits of a node without a cluster: what a job takes, what goes back, what is held.

use std::cell::RefCell;
use std::collections::BTreeMap;

use futures_util::FutureExt as _;
use longshore_backbone::Error;
use longshore_domain::JobOptions;
use longshore_domain::limit::{Answer, Ask, Asked, Lease, Record, Window};

use super::*;
use crate::limits::rate::keeper::{LimitPorts, Request, carry_out};

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
    Job { tenant: Tenant::parse(tenant).unwrap(), options, ..crate::tests::job(job_type, "r") }
}

fn ids(limits: &Limits, job: &Job) -> Vec<String> {
    let key = KindKey::of(job.options.as_deref());
    limits.ids(&job.tenant, &job.job_type, &key).iter().map(|(id, _)| id.to_string()).collect()
}

/// The cluster grants what the node asks for.
fn grant(limits: &Limits, tokens: u32) {
    let (now, time) = (Instant::now(), now());
    let mut known = limits.known();
    let asking: Vec<LimitId> = known.asking.drain().collect();
    for id in asking {
        let holder = known.holders.get_mut(&id).unwrap();
        let ask = holder.ask(now).unwrap();
        let lease = Lease { tokens, from: time, until: time.plus(Duration::from_secs(10)) };
        holder.granted(ask.number, lease, Asked { sent: now, time }, 1);
    }
}

/// The cluster's record of one limit.
struct OneRecord(RefCell<Record>);

impl LimitPorts for OneRecord {
    async fn read_limit(&self, _: &LimitId) -> Result<(Option<Record>, u64), Error> {
        Ok((Some(self.0.borrow().clone()), 1))
    }

    async fn write_limit(&self, _: &LimitId, next: &Record, _: u64, _: Duration) -> Result<bool, Error> {
        self.0.replace(next.clone());
        Ok(true)
    }

    async fn pause(&self, _: Duration) {}
}

/// Given a limit that was used up by a clock an hour ahead, when a node is refused, then what it stores counts from its
/// own time on.
#[test]
fn a_refusal_corrects_what_a_clock_that_was_ahead_wrote() {
    let limit = RateLimit { per: Duration::from_secs(60), window: Window::Sliding, ..limit(10) };
    let ask = |number| Ask { who: "n".into(), number, need: 1, want: 10 };
    let ahead = now().plus(Duration::from_secs(3_600));
    let Answer::Granted(record, _) = Record::lease(None, &limit, &ask(1), ahead) else { panic!("none is taken") };
    let server = OneRecord(RefCell::new(record));
    let id = LimitId { scope: Scope::Type(JobType::parse("own").unwrap()), key: None };
    assert!(carry_out(&server, Request::Lease(id, limit, ask(2))).now_or_never().flatten().is_some());
    let record = server.0.into_inner();
    assert_eq!((record.left(&limit, now()), record.left(&limit, now().plus(limit.per * 2))), (0, 10));
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
    let until = now().plus(Duration::from_secs(5));
    let what = limits.scope_of_hold(
        &job("t", "free", Some("k")).tenant,
        &JobType::parse("free").unwrap(),
        &KindKey::of_limit_key(Some("k")),
    );
    assert_eq!(limits.add_holds([&Hold { what, until }]), 0);
    let kept = limits.held_until(
        &Tenant::parse("t").unwrap(),
        &JobType::parse("free").unwrap(),
        &KindKey::of_limit_key(Some("k")),
    );
    assert!(kept.unwrap() > until, "the longer hold counts");
    let only = |tenant: &str| limits.only_hold(&Tenant::parse(tenant).unwrap(), &JobType::parse("free").unwrap());
    assert_eq!((only("t"), only("u")), (kept, None), "of a job whose key is not known");
    limits.hold(&job("t", "free", None), Duration::from_secs(60));
    assert_eq!(only("t"), None, "which of two is not known");
}

/// Given holds that are to be announced, when the write of one fails, then it is to be announced again, unless it is
/// over or a longer one has come meanwhile.
#[test]
fn a_hold_whose_write_failed_is_announced_again_but_takes_the_place_of_no_longer_one() {
    let limits = limits();
    let (free, own) = (job("t", "free", Some("k")), job("t", "own", Some("k")));
    limits.hold(&free, Duration::from_secs(30));
    let failed = limits.take_unpublished();
    assert_eq!(failed.len(), 1);
    assert!(limits.take_unpublished().is_empty(), "each is announced once");
    failed.iter().for_each(|hold| limits.to_announce(hold.clone()));
    let again = limits.take_unpublished();
    assert_eq!(
        again.iter().map(|hold| (&hold.what, hold.until)).collect::<Vec<_>>(),
        [(&failed[0].what, failed[0].until)]
    );

    // The handler of another job asks for a longer hold while the shorter one's write fails.
    limits.hold(&free, Duration::from_secs(60));
    let longer = limits.take_unpublished();
    assert!(longer.len() == 1 && longer[0].until > failed[0].until);
    limits.to_announce(failed[0].clone());
    limits.to_announce(Hold {
        what: limits.scope_of_hold(&own.tenant, &own.job_type, &KindKey::default()),
        until: now(),
    });
    assert!(limits.take_unpublished().is_empty());
}

/// Given a limit of the configuration, when an operator sets another one while the cluster runs, then tokens of the
/// former are used no more, and when it is removed again, the configured one holds.
#[test]
fn a_limit_that_is_set_at_run_time_takes_the_place_of_the_configured_one_at_once() {
    let limits = limits();
    let (own, free) = (job("t", "own", None), job("t", "free", None));
    let scope = |name: &str| Scope::Type(JobType::parse(name).unwrap());
    assert!(matches!(limits.take(&free, Instant::now()), Ok(None)), "it has no limit");
    assert!(limits.take(&own, Instant::now()).is_err());
    grant(&limits, 5);
    let room = || limits.room(&Kind::of(&own), Instant::now());
    assert!(matches!(room(), Some(Expected::Tokens(5..))));
    let known = limits.news.count();
    limits.set_at_run_time(HashMap::from([(scope("own"), limit(7)), (scope("free"), limit(3))]));
    assert!(limits.news.count() > known, "jobs that wait are asked about again");
    assert_eq!(limits.limit_of(&scope("own")), Some(limit(7)));
    assert!(!matches!(room(), Some(Expected::Tokens(2..))), "no parked job comes back for tokens of the former limit");
    assert!(limits.is_set(&scope("free")) && limits.take(&free, Instant::now()).is_err(), "it has one now");
    assert!(limits.may_bite(&free.job_type));
    limits.set_at_run_time(HashMap::new());
    assert_eq!(limits.limit_of(&scope("own")), Some(limit(100)), "the configured one");
    assert!(matches!(limits.take(&free, Instant::now()), Ok(None)));
    assert!(limits.may_bite(&free.job_type), "its jobs keep their order behind those that still wait");
    assert!(limits.take(&own, Instant::now()).is_err());
    let names: Vec<String> = limits.scopes().iter().map(ToString::to_string).collect();
    assert_eq!(names.len(), 3, "{names:?}: two types and the shared one");
}

#[test]
fn a_job_that_costs_several_tokens_takes_them_together() {
    let limits = limits();
    let options = JobOptions { cost: Some(3), ..JobOptions::default() };
    let dear = Job { options: Some(Box::new(options)), ..job("t", "own", None) };
    assert!(limits.take(&dear, Instant::now()).is_err());
    grant(&limits, 4);
    let tokens = limits.take(&dear, Instant::now()).unwrap();
    assert!(limits.take(&dear, Instant::now()).is_err(), "one is left, and three are needed");
    assert!(limits.take(&job("t", "own", None), Instant::now()).is_ok(), "another job needs only that one");
    drop(tokens);
    assert!(limits.take(&dear, Instant::now()).is_ok());
}

/// Given parked jobs of a limited type, when the node has tokens, then as many are wanted back as there are tokens;
/// when they are held or the limit is used up, then none before that is over.
#[test]
fn parked_jobs_are_wanted_back_by_the_tokens_that_there_are() {
    let limits = limits();
    let kind = |job_type: &str| Kind::of(&job("t", job_type, None));
    let now = Instant::now();
    assert_eq!(
        (limits.room(&kind("own"), now), limits.room(&kind("free"), now)),
        (Some(Expected::Tokens(1)), None),
        "one asks"
    );
    assert!(limits.take(&job("t", "own", None), now).is_err());
    grant(&limits, 5);
    assert!(matches!(limits.room(&kind("own"), Instant::now()), Some(Expected::Tokens(5..))));
    limits.hold(&job("t", "own", None), Duration::from_secs(30));
    assert_eq!(limits.room(&kind("own"), Instant::now()), Some(Expected::NotYet), "a handler holds them");
    assert_eq!(limits.room(&kind("shared"), Instant::now()), Some(Expected::Tokens(1)), "others are not held");
}

#[test]
fn a_hold_ends_by_itself_lasts_a_day_at_most_and_is_announced_to_the_other_nodes_once() {
    let limits = limits();
    let of = |job_type| job("t", job_type, None);
    let held_until = |job_type| {
        let job = of(job_type);
        limits.held_until(&job.tenant, &job.job_type, &KindKey::default())
    };
    limits.hold(&of("own"), Duration::ZERO);
    assert_eq!(held_until("own"), None);
    limits.hold(&of("own"), MAX_HOLD * 2);
    assert!(held_until("own").is_some_and(|until| until <= now().plus(MAX_HOLD)));
    limits.hold(&of("own"), Duration::from_secs(1));
    let published: Vec<Hold> = limits.take_unpublished();
    assert_eq!(published.iter().map(|hold| hold.until).max(), held_until("own"), "the longer one counts everywhere");
    assert!(limits.take_unpublished().is_empty());
}

/// Given as many holds as are kept, when a handler asks for a further one, then no other node learns of it either.
#[test]
fn a_hold_that_is_not_kept_is_not_announced() {
    let (limits, until) = (limits(), now().plus(Duration::from_secs(60)));
    let many: Vec<Hold> = (0..MAX_HOLDS).map(|number| Hold { what: format_smolstr!("{number}"), until }).collect();
    assert_eq!(limits.add_holds(&many), MAX_HOLDS);
    limits.hold(&job("t", "own", None), Duration::from_secs(30));
    assert!(limits.take_unpublished().is_empty());
}

/// Given as many limits as are known at once, all of which are used up for a day, when no job has wanted them for a
/// while, then there are places for other limits again.
#[test]
fn limits_that_are_used_up_hold_up_no_others_for_long() {
    let (limits, start, time) = (limits(), Instant::now(), now());
    let keyed = |key: usize| job("t", "own", Some(&key.to_string()));
    for key in 0..MAX_LIMITS {
        assert!(limits.take(&keyed(key), start).is_err());
    }
    let mut known = limits.known();
    let asking: Vec<LimitId> = known.asking.drain().collect();
    for id in asking {
        let holder = known.holders.get_mut(&id).unwrap();
        let number = holder.ask(start).unwrap().number;
        holder.refused(number, time.plus(Duration::from_secs(86_400)), Asked { sent: start, time });
    }
    drop(known);
    let asks = |at: Instant| {
        assert!(limits.take(&keyed(MAX_LIMITS), at).is_err());
        limits.known().asking.len()
    };
    assert_eq!(asks(start), 0, "there is no place");
    let later = start + Duration::from_secs(30);
    let busy = limits.known().holders.keys().take(1).cloned().collect();
    limits.known().forget_unused(later, &busy);
    assert_eq!(limits.known().holders.len(), MAX_LIMITS - SPARE);
    assert!(limits.known().holders.contains_key(busy.iter().next().unwrap()), "a request for it is on its way");
    assert_eq!(asks(later), 1);
}

#[tokio::test]
async fn a_submission_waits_a_moment_for_its_tenants_tokens_and_is_refused_where_there_are_none() {
    use longshore_domain::policy::TenantPolicy;
    let tenant = Tenant::parse("small").unwrap();
    let of_tenant = TenantPolicy { rate_limit: Some(limit(2)), ..TenantPolicy::default() };
    let policies = Policies { tenants: [(tenant.clone(), of_tenant)].into(), ..Policies::default() };
    let limits = Arc::new(Limits::new("n1", Arc::new(policies), Arc::default()));
    assert!(matches!(limits.admit(&Tenant::parse("other").unwrap()).await, Ok(None)), "it has no limit");
    let mut asks = Box::pin(limits.admit(&tenant));
    assert!(futures_util::FutureExt::now_or_never(asks.as_mut()).is_none(), "the cluster is asked");
    grant(&limits, 1);
    limits.news.notify();
    let admitted = asks.await.unwrap().unwrap();
    assert!(admitted.spend(Instant::now()));
}
