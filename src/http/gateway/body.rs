//! Bodies of requests within their bounds: bytes of one, bytes of all, time between two pieces, media type.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use longshore_backbone::wire::api::{ApiError, Code};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::super::problem::of_http;

/// Most KiB of all bodies that are being read or worked on.
const MAX_OF_ALL: usize = 256 << 10;
/// How long a client may send nothing in the middle of a body.
const WITHIN: Duration = Duration::from_secs(10);

/// The room for bodies. Cheap to clone.
#[derive(Debug, Clone)]
pub(in crate::http) struct Bodies {
    /// Most bytes of one body.
    pub(super) max: usize,
    room: Arc<Semaphore>,
}

/// A body, and its room, which goes back when it is dropped.
#[derive(Debug)]
pub(in crate::http) struct Read {
    pub(in crate::http) bytes: Bytes,
    _room: OwnedSemaphorePermit,
}

impl Bodies {
    pub(in crate::http) fn new(max: usize) -> Self {
        Self { max, room: Arc::new(Semaphore::new(MAX_OF_ALL)) }
    }

    /// A body of JSON, or none; else 415, 413, 408, 400 if it ends too early, 503 without room.
    pub(in crate::http) async fn json(&self, headers: &HeaderMap, body: Body) -> Result<Read, ApiError> {
        let read = self.read(headers, body).await?;
        if !read.bytes.is_empty() && media_type(headers).is_some_and(|given| given != "application/json") {
            let message = "Content-Type: is not application/json";
            return Err(of_http(StatusCode::UNSUPPORTED_MEDIA_TYPE, "wrong_content_type", message));
        }
        Ok(read)
    }

    /// A body of any kind; errors are those of [`Bodies::json`], but 415 for a compressed body alone.
    pub(super) async fn read(&self, headers: &HeaderMap, body: Body) -> Result<Read, ApiError> {
        as_it_is(headers)?;
        // Said before the body is sent, if the client asks first (`Expect: 100-continue`).
        let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        if length.is_some_and(|length| length > self.max) {
            return Err(self.too_large());
        }
        let (mut read, mut room) = (BytesMut::new(), self.room()?);
        let mut pieces = body.into_data_stream();
        while let Some(piece) = next(&mut pieces).await {
            let piece = piece?;
            if read.len() + piece.len() > self.max {
                return Err(self.too_large());
            }
            self.fit(&mut room, read.len() + piece.len())?;
            read.extend_from_slice(&piece);
        }
        Ok(Read { bytes: read.freeze(), _room: room })
    }

    /// Room for a body that is about to be read.
    pub(super) fn room(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        self.take(0)
    }

    /// Makes it the room of so many bytes; 503 if there is none for more.
    pub(super) fn fit(&self, room: &mut OwnedSemaphorePermit, bytes: usize) -> Result<(), ApiError> {
        let (kib, had) = (bytes >> 10, room.num_permits());
        if kib > had {
            room.merge(self.take(kib - had)?);
        } else {
            drop(room.split(had - kib));
        }
        Ok(())
    }

    fn take(&self, kib: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        let taken = Arc::clone(&self.room).try_acquire_many_owned(u32::try_from(kib).unwrap_or(u32::MAX));
        taken.map_err(|_| ApiError::unavailable("the node is reading as many bodies as it has room for"))
    }

    fn too_large(&self) -> ApiError {
        ApiError::new(Code::TooLarge, format!("the body has more than {} bytes", self.max))
    }
}

/// 415 for a compressed body, which nothing here reads, and no handler would know.
pub(super) fn as_it_is(headers: &HeaderMap) -> Result<(), ApiError> {
    let named = headers.get_all(header::CONTENT_ENCODING).iter();
    match named.map(HeaderValue::as_bytes).all(|coding| coding.eq_ignore_ascii_case(b"identity")) {
        true => Ok(()),
        false => {
            let message = "Content-Encoding: the body must come as it is";
            Err(of_http(StatusCode::UNSUPPORTED_MEDIA_TYPE, "wrong_content_type", message))
        }
    }
}

/// The next piece of a body.
pub(super) async fn next(pieces: &mut axum::body::BodyDataStream) -> Option<Result<Bytes, ApiError>> {
    let Ok(piece) = timeout(WITHIN, pieces.next()).await else {
        let message = format!("the body stood still for {WITHIN:?}");
        return Some(Err(of_http(StatusCode::REQUEST_TIMEOUT, "too_slow", message)));
    };
    Some(piece?.map_err(|_| ApiError::malformed("the body was cut off")))
}

/// The media type that a request names for its body, in lower case and without parameters.
pub(super) fn media_type(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().unwrap_or_default();
    Some(value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_has_the_room_of_what_is_held_of_it() {
        let bodies = Bodies::new(1 << 20);
        let (mut one, mut other) = (bodies.room().unwrap(), bodies.room().unwrap());
        let all = MAX_OF_ALL << 10;
        bodies.fit(&mut one, all).unwrap();
        bodies.fit(&mut other, 1_023).unwrap();
        assert_eq!(bodies.fit(&mut other, 1_024).unwrap_err().code, 503);
        bodies.fit(&mut one, all - 1).unwrap();
        bodies.fit(&mut other, 1_024).unwrap();
        drop(one);
        bodies.fit(&mut other, all).unwrap();
    }
}
