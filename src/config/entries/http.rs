//! The settings `[http]`: where a node serves HTTP, and to whom.

use std::net::{Ipv4Addr, SocketAddr};

use crate::config::http_kind::{BasePath, JwtAlgorithm, Listen, Origin, TraceUrl, Url};
use crate::config::kind::{Size, Text};
use crate::config::listen::Auth;
use crate::config::schema::Field::{self, Setting as One};
use crate::config::schema::{Entry, Table};

pub(crate) static HTTP: Table = Table::of(
    "HTTP: the API under /v1, probes and metrics at /healthz, /readyz, /metrics.",
    &[
        One(&HTTP_LISTEN),
        One(&HTTP_AUTH),
        One(&HTTP_ALLOW_OPEN),
        One(&BASE_PATH),
        One(&CORS_ORIGINS),
        One(&ENVIRONMENT),
        One(&ENVIRONMENT_COLOR),
        One(&TRACE_URL),
        One(&MAX_BODY),
        One(&METRICS_AUTH),
        Field::Table { name: "tls", table: &TLS, or: None },
        Field::Table { name: "jwt", table: &JWT, or: None },
    ],
);

pub(crate) static HTTP_LISTEN: Entry<Listen> = Entry::new(
    "listen",
    || Listen(vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 8080))]),
    "Where the node listens: one address or a list of them; \"off\" turns it off. If nothing is set and the port is taken, \
     it is a free port, which the log names; a port that is set here and taken is an error.",
);

pub(crate) static HTTP_AUTH: Entry<Auth> = Entry::new(
    "auth",
    || Auth::Off,
    "Who may ask the API over HTTP: with \"keys\" who has a key (longshore keys create), with \"off\" everybody on this \
     machine, as the operator. Where listen is no loopback address, the node does not start with \"off\". Probes and \
     metrics need no key.",
);

pub(crate) static HTTP_ALLOW_OPEN: Entry<bool> = Entry::new(
    "allow_open",
    || false,
    "Start nevertheless: every client that reaches the address may ask everything, as the operator.",
);

pub(crate) static BASE_PATH: Entry<Option<BasePath>> = Entry::new(
    "base_path",
    || None,
    "What paths begin with behind a proxy: links, cookies and Location headers have it. A request may come with it or \
     without, so that it does not matter whether the proxy takes it away.",
)
.example("\"/longshore\"");

pub(crate) static CORS_ORIGINS: Entry<Vec<Origin>> =
    Entry::new("cors_origins", Vec::new, "The origins whose pages may ask from a browser, with a key or as auth says.")
        .example("[\"https://tools.example.com\"]");

pub(crate) static ENVIRONMENT: Entry<Option<Text>> =
    Entry::new("environment", || None, "What the dashboard calls this installation.").example("\"production\"");

pub(crate) static ENVIRONMENT_COLOR: Entry<Option<Text>> =
    Entry::new("environment_color", || None, "The colour of that name, as CSS has it.").example("\"#b3261e\"");

pub(crate) static TRACE_URL: Entry<Option<TraceUrl>> = Entry::new(
    "trace_url",
    || None,
    "Where the dashboard's link to a run's trace leads: {trace_id} stands for the id of the trace.",
)
.example("\"https://traces.example.com/trace/{trace_id}\"");

pub(crate) static MAX_BODY: Entry<Size> = Entry::new(
    "max_body",
    || Size(8 << 20),
    "Most bytes of the body of a request, and of a line of several jobs. What NATS does not take is refused in any case.",
)
.at_least(|| Size(1 << 10))
.at_most(|| Size(64 << 20));

pub(crate) static METRICS_AUTH: Entry<bool> =
    Entry::new("metrics_auth", || false, "Whether /metrics needs a key of the operator with the scope read.");

static TLS: Table = Table::of(
    "TLS for HTTP. The files are read again when they change; while they cannot be used, the former ones stay.",
    &[One(&CERT), One(&KEY), One(&CLIENT_CA)],
)
.optional();

pub(crate) static CERT: Entry<Option<Text>> =
    Entry::new("cert", || None, "The certificate and those that lead to a root, in PEM. It needs key.")
        .example("\"/etc/longshore/tls.crt\"");

pub(crate) static KEY: Entry<Option<Text>> =
    Entry::new("key", || None, "The certificate's private key, in PEM.").example("\"/etc/longshore/tls.key\"");

pub(crate) static CLIENT_CA: Entry<Option<Text>> = Entry::new(
    "client_ca",
    || None,
    "Clients must have a certificate of one of these roots, in PEM: for probes and metrics, too.",
)
.example("\"/etc/longshore/clients.crt\"");

static JWT: Table = Table::of(
    "Tokens of an identity provider, which count beside keys where auth is \"keys\".",
    &[
        One(&JWKS_FILE),
        One(&JWKS_URL),
        One(&ISSUER),
        One(&AUDIENCE),
        One(&ALGORITHMS),
        One(&TENANT_CLAIM),
        One(&SCOPE_CLAIM),
    ],
)
.optional();

pub(crate) static JWKS_FILE: Entry<Option<Text>> = Entry::new(
    "jwks_file",
    || None,
    "The provider's keys as a JWK set, if there is no jwks_url or it does not answer.",
)
.example("\"/etc/longshore/jwks.json\"");

pub(crate) static JWKS_URL: Entry<Option<Url>> = Entry::new(
    "jwks_url",
    || None,
    "The same, from the provider; asked again when a token names an unknown key, at most once a minute.",
)
.example("\"https://login.example.com/.well-known/jwks.json\"");

pub(crate) static ISSUER: Entry<Option<Text>> =
    Entry::new("issuer", || None, "What a token's iss must be.").example("\"https://login.example.com/\"");

pub(crate) static AUDIENCE: Entry<Option<Text>> =
    Entry::new("audience", || None, "What a token's aud must have.").example("\"longshore\"");

pub(crate) static ALGORITHMS: Entry<Vec<JwtAlgorithm>> = Entry::new(
    "algorithms",
    || ["RS256", "PS256", "ES256", "EdDSA"].map(|name| JwtAlgorithm(name.to_owned())).to_vec(),
    "The algorithms that count, if they fit the kind of the key.",
);

pub(crate) static TENANT_CLAIM: Entry<Text> =
    Entry::new("tenant_claim", || Text("tenant".to_owned()), "The claim that names the tenant, _all for the operator.");

pub(crate) static SCOPE_CLAIM: Entry<Text> = Entry::new(
    "scope_claim",
    || Text("scope".to_owned()),
    "The claim that has the scopes: words with blanks between them, or a list.",
);
