//! Calls the targets of webhooks, by the client that calls no address of the inside.

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, Uri};
use longshore_actors::handler::BoxFuture;
use longshore_actors::{Posted, WEBHOOK_WITHIN, WebhookCaller};

use crate::outbound::Outbound;

/// What an answer says beyond its status is of no use.
const READ: usize = 1 << 10;

impl WebhookCaller for Outbound {
    fn check<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            let url: Uri = url.parse().map_err(|error| format!("is no URL: {error}"))?;
            Self::check(self, &url).await.map_err(|refused| refused.to_string())
        })
    }

    fn post<'a>(&'a self, url: &'a str, headers: &'a [(&'static str, String)], body: Bytes) -> Posted<'a> {
        Box::pin(async move {
            let mut request = Request::post(url);
            for (name, value) in headers {
                request = request.header(*name, value);
            }
            let request = request.body(Full::new(body)).map_err(|error| error.to_string())?;
            let answer = self.send(request, WEBHOOK_WITHIN, READ).await;
            answer.map(|answer| answer.status).map_err(|error| error.to_string())
        })
    }
}
