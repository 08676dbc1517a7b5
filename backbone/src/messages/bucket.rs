//! Keys of buckets, over the control connection: read as the bucket's leader has them, listed, written and removed.
//! Nothing here knows what stands under a key: the module to which the key belongs does.

use std::time::Duration;

use async_nats::HeaderMap;
use bytes::Bytes;
use serde::Serialize;

use crate::Backbone;
use crate::error::Error;
use crate::messages::get;
use crate::messages::raw::Raw;
use crate::messages::request::{self, PubAck, Stored};
use crate::messages::scan;

impl Backbone {
    /// What stands under a key, as the bucket's leader has it.
    pub(crate) async fn entry(&self, bucket: &str, key: &str) -> Result<Option<Raw>, Error> {
        let (stream, subject) = (self.names().bucket_stream(bucket), self.names().key(bucket, key));
        request::latest(self.control(), &stream, &subject).await
    }

    /// What was written after a revision under keys, which may have wildcards, in that order and as the bucket's leader
    /// has it. It is read one by one: for keys that are few.
    pub(crate) async fn entries_after(&self, bucket: &str, keys: &str, revision: u64) -> Result<Vec<Raw>, Error> {
        let (stream, subject) = (self.names().bucket_stream(bucket), self.names().key(bucket, keys));
        get::all(self.control(), &stream, &subject, revision + 1).await
    }

    /// What stands under keys, which may have wildcards, page by page; what cannot be read is left out. Any replica
    /// answers, which may be a little behind.
    pub(crate) async fn entries_by_pages<T>(
        &self,
        bucket: &str,
        keys: &str,
        read: impl Fn(Stored) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        let (stream, subject) = (self.names().bucket_stream(bucket), self.names().key(bucket, keys));
        let (mut all, mut from) = (Vec::new(), Some(1));
        while let Some(first) = from {
            let page = scan::page(self.control(), &stream, &subject, first).await?;
            all.extend(page.messages.into_iter().filter_map(&read));
            from = page.next;
        }
        Ok(all)
    }

    pub(crate) async fn put_entry(
        &self,
        bucket: &str,
        key: &str,
        value: &impl Serialize,
        headers: HeaderMap,
    ) -> Result<PubAck, Error> {
        request::publish(self.control(), self.names().key(bucket, key), headers, request::json(value)).await
    }

    /// Removes what stands under a key. For that long the server keeps the note that it was removed; without that, for
    /// good.
    pub(crate) async fn remove_entry(&self, bucket: &str, key: &str, noted: Option<Duration>) -> Result<(), Error> {
        let (subject, headers) = (self.names().key(bucket, key), request::removal(None, noted));
        request::publish(self.control(), subject, headers, Bytes::new()).await.map(drop)
    }
}
