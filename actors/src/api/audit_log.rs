//! Reads the audit: an endpoint that may be asked by each tenant for its own entries, and by the operator for all.

use longshore_backbone::scan::Source;
use longshore_backbone::wire::api::{ApiError, AuditEntry, AuditPage, AuditRequest, Encoded, OPERATOR};

use crate::api::{Answered, Api, filter};

pub(crate) async fn list(api: &Api, asker: &str, asked: AuditRequest) -> Answered<AuditPage> {
    let AuditRequest { since, limit, cursor } = asked;
    let limit = filter::page_size(limit)?;
    let subject = api.backbone.names().audit(if asker == OPERATOR { "*" } else { asker });
    let from = cursor.as_deref().map(str::parse::<u64>).transpose();
    let from = from.map_err(|_| ApiError::malformed("cursor: is none that an answer had"))?;
    let page = match (from, since) {
        (None, Some(since)) => api.backbone.page_since(&Source::Audit, &subject, since).await?,
        (from, _) => api.backbone.page(&Source::Audit, &subject, from.unwrap_or(1)).await?,
    };
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
