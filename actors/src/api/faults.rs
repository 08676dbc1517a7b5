//! Faults on purpose: sets, lists and ends them, where the configuration allows any.
//!
//! A fault is a run-time setting: it is stored first, then announced, and ends by itself. A node that is silent learns
//! of it within a second of its return.

use longshore_backbone::wire::api::{
    ApiError, ClearFaultsRequest, Code, Encoded, FaultSet, FaultStatus, Faults, FaultsCleared, SetFaultRequest,
};
use longshore_domain::fault::Fault;
use longshore_domain::setting::{Setting, SettingKey};

use crate::api::pauses::{announce, write};
use crate::api::{Answered, Api};
use crate::limits::faults::ActiveFault;
use crate::runtime::now;

/// Faults that are set at once.
const MAX: usize = 100;

fn allowed(api: &Api) -> Result<(), ApiError> {
    if api.policies.faults_allowed {
        return Ok(());
    }
    let message = "faults on purpose are not allowed by the configuration of the node that answers";
    Err(ApiError::new(Code::Forbidden, message).hint("[faults] allowed = true, on each node that is to meet them"))
}

pub(crate) async fn set(api: &Api, asked: SetFaultRequest) -> Answered<FaultSet> {
    allowed(api)?;
    let SetFaultRequest { job_type, kind, probability, delay_ms, step, until, limit } = asked;
    let fault = Fault { probability: probability.unwrap_or(1.0), delay_ms, step, until, limit };
    fault.check(kind, now()).map_err(|(field, reason)| ApiError::malformed(format!("{field}: {reason}")))?;
    let known = api.run_time_settings.faults.all(now());
    if known.len() >= MAX && !known.iter().any(|of| of.job_type == job_type && of.kind == kind) {
        return Err(ApiError::new(Code::WrongState, format!("there are {MAX} faults already")));
    }
    let (key, value) = (SettingKey::Fault(job_type.clone(), kind), Setting::Fault(fault.clone()));
    let stored = write(api, &key, Some(value), |_| false).await?;
    let unconfirmed = announce(api, stored.revision).await?;
    Ok(Encoded::of(&FaultSet { fault: FaultStatus::of(job_type, kind, fault), unconfirmed }))
}

pub(crate) fn list(api: &Api) -> Answered<Faults> {
    allowed(api)?;
    let faults = api.run_time_settings.faults.all(now()).into_iter().map(status).collect();
    Ok(Encoded::of(&Faults { faults }))
}

pub(crate) async fn clear(api: &Api, asked: ClearFaultsRequest) -> Answered<FaultsCleared> {
    allowed(api)?;
    let ClearFaultsRequest { job_type, kind } = asked;
    let mut cleared = FaultsCleared { faults: Vec::new(), unconfirmed: Vec::new() };
    let mut revision = 0;
    for of in api.run_time_settings.faults.all(now()) {
        if job_type.as_ref().is_none_or(|job_type| of.job_type == *job_type) && kind.is_none_or(|kind| of.kind == kind)
        {
            let key = SettingKey::Fault(of.job_type.clone(), of.kind);
            revision = write(api, &key, None, |_| false).await?.revision.max(revision);
            cleared.faults.push(status(of));
        }
    }
    if !cleared.faults.is_empty() {
        cleared.unconfirmed = announce(api, revision).await?;
    }
    Ok(Encoded::of(&cleared))
}

fn status(ActiveFault { job_type, kind, fault, .. }: ActiveFault) -> FaultStatus {
    FaultStatus::of(job_type, kind, fault)
}
