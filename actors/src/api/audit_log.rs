//! Reads the audit: an endpoint that may be asked by each tenant for its own entries, and by the operator for all.

use longshore_backbone::scan::Source;
use longshore_backbone::wire::api::{ApiError, AuditEntry, AuditPage, AuditRequest, Encoded, OPERATOR};

use crate::api::Api;
use crate::api::dead_letters::{self, LIST_DEFAULT};

/// Serves `audit.list`.
pub(crate) async fn list(api: &Api, asker: &str, asked: AuditRequest) -> Result<Encoded<AuditPage>, ApiError> {
    let AuditRequest { since, limit, cursor } = asked;
    let limit = usize::try_from(dead_letters::limit(limit)?.unwrap_or(LIST_DEFAULT)).unwrap_or(1);
    let subject = api.backbone.names().audit(if asker == OPERATOR { "*" } else { asker });
    let from = match cursor.as_deref().map(str::parse::<u64>) {
        Some(Ok(from)) => Some(from),
        Some(Err(_)) => return Err(ApiError::malformed("cursor: is none that an answer had")),
        None => None,
    };
    let page = match (from, since) {
        (Some(from), _) => api.backbone.page(&Source::Audit, &subject, from).await,
        (None, Some(since)) => api.backbone.page_since(&Source::Audit, &subject, since).await,
        (None, None) => api.backbone.page(&Source::Audit, &subject, 1).await,
    };
    let page = page?;
    let room = api.backbone.max_in_answer() / 2;
    let (mut entries, mut next, mut bytes) = (Vec::new(), page.next, 0);
    for stored in page.messages {
        bytes += stored.payload.len();
        if entries.len() >= limit || (bytes > room && !entries.is_empty()) {
            next = Some(stored.sequence);
            break;
        }
        // What only a stranger can have written is passed over.
        entries.extend(serde_json::from_slice::<AuditEntry>(&stored.payload).ok());
    }
    Ok(Encoded::of(&AuditPage { entries, cursor: next.map(|sequence| sequence.to_string()) }))
}
