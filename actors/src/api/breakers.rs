//! Circuit breakers: lists them, and passes operators' orders to the actor that writes their records.

use std::time::Duration;

use longshore_backbone::Backbone;
use longshore_backbone::breakers::FoundBreaker;
use longshore_backbone::wire::api::{
    ApiError, BreakerStatus, Breakers as Listed, BreakersRequest, Code, Encoded, ResetRequest, TripRequest,
};
use longshore_domain::breaker::record::{BreakerKey, BreakerStep};
use longshore_domain::duration::MAX_DURATION;

use crate::api::filter::PageRoom;
use crate::api::{Answered, Api, filter};
use crate::limits::breaker::keeper::BreakerMessage;
use crate::runtime::now;

/// How long an order may take.
const ORDERED_WITHIN: Duration = Duration::from_secs(8);

pub(crate) async fn list(backbone: &Backbone, asker: &str, asked: BreakersRequest) -> Answered<Listed> {
    let BreakersRequest { tenant, job_type, limit, cursor } = asked;
    let tenant = filter::whose(asker, tenant.as_ref())?;
    let limit = filter::page_size(limit)?;
    let from = filter::cursor(cursor.as_deref())?;
    let mut found = backbone.breakers().all(tenant.as_ref()).await?;
    // In the order in which they were written: one that changes meanwhile comes again, and none is left out.
    found.sort_unstable_by_key(|found| found.revision);
    let now = now();
    let wanted = found.into_iter().filter(|FoundBreaker { breaker, revision }| {
        let is_of_type = job_type.as_ref().is_none_or(|wanted| *wanted == breaker.of.job_type);
        *revision >= from && is_of_type && !breaker.is_forgotten(now)
    });
    let mut room = PageRoom::of(limit, backbone.max_payload());
    let mut listed = Listed { breakers: Vec::new(), cursor: None };
    for FoundBreaker { breaker, revision } in wanted {
        let status = BreakerStatus::from(breaker);
        if !room.takes(&status) {
            listed.cursor = Some(revision.to_string());
            break;
        }
        listed.breakers.push(status);
    }
    Ok(Encoded::of(&listed))
}

pub(crate) async fn reset(api: &Api, ResetRequest { tenant, job_type, key }: ResetRequest) -> Answered<BreakerStatus> {
    order(api, BreakerKey { tenant, job_type, key }, BreakerStep::Reset).await
}

pub(crate) async fn trip(api: &Api, asked: TripRequest) -> Answered<BreakerStatus> {
    let TripRequest { tenant, job_type, key, until } = asked;
    let now = now();
    if until.is_some_and(|until| until <= now || until.since(now) > MAX_DURATION) {
        return Err(ApiError::malformed("until: is not within 3650 days from now"));
    }
    order(api, BreakerKey { tenant, job_type, key }, BreakerStep::Trip { until }).await
}

async fn order(api: &Api, of: BreakerKey, step: BreakerStep) -> Answered<BreakerStatus> {
    let (job_type, refused) = (&of.job_type, |message| Err(ApiError::new(Code::WrongState, message)));
    match api.breakers.policy(job_type) {
        None => return refused(format!("type: {job_type} has no circuit breaker (setting breaker of the type)")),
        Some(policy) if of.key.is_some() && !policy.per_key => {
            return refused(format!("key: {job_type} has one circuit breaker for all keys (setting breaker.per_key)"));
        }
        Some(_) => {}
    }
    let order = |reply| BreakerMessage::Order(of.clone(), step.clone(), reply);
    match api.circuit_breaker.ask(ORDERED_WITHIN, order).await {
        Some(Ok(breaker)) => Ok(Encoded::of(&BreakerStatus::from(breaker))),
        Some(Err(error)) => Err(error.into()),
        None => Err(ApiError::unavailable("it was not confirmed in time: breakers.list says whether it was done")),
    }
}
