//! Conditions of requests (RFC 9110, section 13): what an answer is known by, and whether it is still the same.

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use longshore_backbone::wire::api::{ApiError, Code, Declaration};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::unreadable;

#[derive(Deserialize)]
struct Schedule<'a> {
    updated_at: &'a str,
}

/// What an answer is known by: it changes with the answer. That of a schedule says when that was changed, too.
pub(in crate::http) fn etag(answer: &[u8]) -> Option<HeaderValue> {
    let hash = STANDARD.encode(&Sha256::digest(answer)[..12]);
    let changed = serde_json::from_slice::<Schedule<'_>>(answer).map(|schedule| format!("{};", schedule.updated_at));
    HeaderValue::from_str(&format!("\"{}{hash}\"", changed.unwrap_or_default())).ok()
}

/// The tags of a condition. None of ours has a comma.
fn tags(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    headers.get_all(name).iter().filter_map(|tags| tags.to_str().ok()).flat_map(|tags| tags.split(',')).map(str::trim)
}

/// Whether the client has the answer that is known by this tag.
pub(in crate::http) fn is_known(headers: &HeaderMap, tag: &HeaderValue) -> bool {
    tags(headers, header::IF_NONE_MATCH)
        .any(|known| known == "*" || known.strip_prefix("W/").unwrap_or(known).as_bytes() == tag.as_bytes())
}

/// 412 if the answer is not the one that is asked for.
pub(super) fn is_asked_for(headers: &HeaderMap, tag: &HeaderValue) -> Result<(), ApiError> {
    let is_it = |asked: &str| asked == "*" || asked.as_bytes() == tag.as_bytes();
    match headers.contains_key(header::IF_MATCH) && !tags(headers, header::IF_MATCH).any(is_it) {
        true => Err(ApiError::new(Code::Changed, "If-Match: it has changed")),
        false => Ok(()),
    }
}

/// 400 if the request has a condition, and what it asks for has none. It is not passed over: the client relies on it.
pub(super) fn unconditional(headers: &HeaderMap) -> Result<(), ApiError> {
    for name in ["If-Match", "If-None-Match"] {
        if headers.contains_key(name) {
            return Err(ApiError::malformed(format!("{name}: is no condition of this request; leave it out")));
        }
    }
    Ok(())
}

/// Whether a change is one of a schedule as it was: each of them has the field `if_updated_at`. 400 if it has another
/// condition.
pub(super) fn asks_for_a_schedule(declaration: &Declaration, headers: &HeaderMap) -> Result<bool, ApiError> {
    if !declaration.name.starts_with("schedules.") || headers.contains_key(header::IF_NONE_MATCH) {
        return unconditional(headers).map(|()| false);
    }
    Ok(headers.contains_key(header::IF_MATCH))
}

/// When this schedule was changed last, if that is what one of the tags says, else 412. That it fired since is no
/// change.
pub(super) fn updated_at(headers: &HeaderMap, schedule: &[u8]) -> Result<String, ApiError> {
    let Schedule { updated_at } = serde_json::from_slice(schedule).map_err(unreadable)?;
    let says_it =
        |tag: &str| tag.strip_prefix('"').and_then(|tag| tag.split_once(';')).is_some_and(|(at, _)| at == updated_at);
    match tags(headers, header::IF_MATCH).any(|tag| tag == "*" || says_it(tag)) {
        true => Ok(updated_at.to_owned()),
        false => Err(changed()),
    }
}

pub(super) fn changed() -> ApiError {
    ApiError::new(Code::Changed, "If-Match: the schedule was changed since, or removed; read it again")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: HeaderName, values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (name.clone(), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_tag_is_found_among_others_and_weak_ones_only_where_they_count() {
        let tag = etag(b"{}").unwrap();
        let own = tag.to_str().unwrap().to_owned();
        let (weak, among) = (format!("W/{own}"), format!("\"a\", {own}"));
        for (tags, knows, asks) in [
            (vec![own.as_str()], true, true),
            (vec!["*"], true, true),
            (vec![among.as_str()], true, true),
            (vec!["\"a\"", own.as_str()], true, true),
            (vec![weak.as_str()], true, false),
            (vec!["\"a\""], false, false),
        ] {
            assert_eq!(is_known(&headers(header::IF_NONE_MATCH, &tags), &tag), knows, "{tags:?}");
            assert_eq!(is_asked_for(&headers(header::IF_MATCH, &tags), &tag).is_ok(), asks, "{tags:?}");
        }
        assert!(!is_known(&HeaderMap::new(), &tag) && is_asked_for(&HeaderMap::new(), &tag).is_ok());
    }

    #[test]
    fn a_schedule_is_as_it_was_though_it_fired() {
        let (was, is) = (br#"{"updated_at":"t","a":1}"#, br#"{"updated_at":"t","a":2}"#);
        let tag = etag(was).unwrap();
        let as_it_was = headers(header::IF_MATCH, &[tag.to_str().unwrap()]);
        assert_eq!(updated_at(&as_it_was, is).unwrap(), "t");
        assert_eq!(updated_at(&as_it_was, br#"{"updated_at":"u"}"#).unwrap_err().code, 412);
        assert_eq!(updated_at(&headers(header::IF_MATCH, &["nonsense"]), is).unwrap_err().code, 412);
    }
}
