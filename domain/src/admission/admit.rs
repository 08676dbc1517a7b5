//! Whether a job is taken, by the settings of its tenant and type.

use super::{Admission, Refusal};
use crate::policy::Policies;
use crate::{JobType, Tenant};

/// Whether a job is taken. `version` is the version of its schema that it names.
///
/// # Errors
/// Why it is not.
pub fn admit(
    policies: &Policies,
    tenant: &Tenant,
    job_type: &JobType,
    version: Option<&str>,
    payload: &[u8],
) -> Result<(), Refusal> {
    let Admission { types, tenants } = &policies.admission;
    if tenants.as_ref().is_some_and(|known| !known.contains(tenant)) {
        return Err(Refusal::Tenant(tenant.clone()));
    }
    if types.as_ref().is_some_and(|taken| !taken.contains(job_type)) {
        return Err(Refusal::Type(job_type.clone()));
    }
    let policy = policies.of(job_type);
    if let Some(max) = policy.payload_max.filter(|max| payload.len() as u64 > *max) {
        return Err(Refusal::Payload { bytes: payload.len(), max });
    }
    match &policy.schemas {
        Some(schemas) => schemas.check(version, payload).map_err(Refusal::Schema),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::was_refused;
    use crate::policy::TypePolicy;

    #[test]
    fn what_no_setting_bounds_is_taken() {
        let (tenant, job_type) = (Tenant::parse("acme").unwrap(), JobType::parse("a.b").unwrap());
        assert_eq!(admit(&Policies::default(), &tenant, &job_type, Some("1"), b"anything"), Ok(()));
    }

    #[test]
    fn a_refusal_says_which_bound_was_met() {
        let tenant = |name: &str| Tenant::parse(name).unwrap();
        let job_type = |name: &str| JobType::parse(name).unwrap();
        let mut policies = Policies::default();
        policies.admission.types = Some([job_type("a"), job_type("b")].into());
        policies.admission.tenants = Some([tenant("acme")].into());
        policies.types.insert(job_type("b"), TypePolicy { payload_max: Some(3), ..TypePolicy::default() });
        let judged = |of: &str, kind: &str, bytes| {
            let taken = admit(&policies, &tenant(of), &job_type(kind), None, &vec![b'x'; bytes]);
            taken.err().map(|refusal| refusal.to_string())
        };
        assert_eq!(judged("acme", "a", 1_000), None);
        assert_eq!(judged("acme", "b", 3), None);
        assert!(judged("acme", "b", 4).unwrap().contains("has 4 bytes, 3 are allowed"));
        assert!(judged("acme", "c", 0).unwrap().starts_with("type: c is not"));
        assert!(judged("zeta", "a", 0).unwrap().starts_with("tenant: zeta is not known"));
        for (of, kind, bytes) in [("acme", "b", 4), ("acme", "c", 0), ("zeta", "a", 0)] {
            assert!(was_refused(&judged(of, kind, bytes).unwrap()));
        }
        assert!(!was_refused("header Longshore-Run-At: is not a time"));
    }
}
