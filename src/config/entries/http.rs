//! The settings `[http]`: where a node serves HTTP, and to whom.

use std::net::{Ipv4Addr, SocketAddr};

use crate::config::kind::{Size, Text};
use crate::config::own_kinds::{Auth, BasePath, JwtAlgorithm, Listen, Origin, TraceUrl, Url};
use crate::config::section::settings;

settings! {
    /// HTTP: the API under /v1, probes and metrics at /healthz, /readyz, /metrics.
    HTTP: HttpEntries, HTTP_TABLE;

    /// Where the node listens: one address or a list of them; "off" turns it off. If nothing is set and the port is
    /// taken, it is a free port, which the log names; a port that is set here and taken is an error.
    listen: Listen = Listen(vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 8080))]);
    /// Who may ask the API over HTTP: with "keys" who has a key (longshore keys create), with "off" everybody on this
    /// machine, as the operator. Where listen is no loopback address, the node does not start with "off". Probes and
    /// metrics need no key.
    auth: Auth = Auth::Off;
    /// Start nevertheless: every client that reaches the address may ask everything, as the operator.
    allow_open: bool = false;
    /// What paths begin with behind a proxy: links, cookies and Location headers have it. A request may come with it or
    /// without, so that it does not matter whether the proxy takes it away.
    base_path: Option<BasePath>, example("\"/longshore\"");
    /// The origins whose pages may ask from a browser, with a key or as auth says.
    cors_origins: Vec<Origin>, example("[\"https://tools.example.com\"]");
    /// What the dashboard calls this installation.
    environment: Option<Text>, example("\"production\"");
    /// The colour of that name, as CSS has it.
    environment_color: Option<Text>, example("\"#b3261e\"");
    /// Where the dashboard's link to a run's trace leads: {trace_id} stands for the id of the trace.
    trace_url: Option<TraceUrl>, example("\"https://traces.example.com/trace/{trace_id}\"");
    /// Most bytes of the body of a request, and of a line of several jobs. What NATS does not take is refused in any
    /// case.
    max_body: Size = Size(8 << 20), at_least(|| Size(1 << 10)), at_most(|| Size(64 << 20));
    /// Whether /metrics needs a key of the operator with the scope read.
    metrics_auth: bool = false;
    [tls: &TLS_TABLE]
    [jwt: &JWT_TABLE]
}

settings! {
    /// TLS for HTTP. The files are read again when they change; while they cannot be used, the former ones stay.
    TLS: TlsEntries, TLS_TABLE.optional();

    /// The certificate and those that lead to a root, in PEM. It needs key.
    cert: Option<Text>, example("\"/etc/longshore/tls.crt\"");
    /// The certificate's private key, in PEM.
    key: Option<Text>, example("\"/etc/longshore/tls.key\"");
    /// Clients must have a certificate of one of these roots, in PEM: for probes and metrics, too.
    client_ca: Option<Text>, example("\"/etc/longshore/clients.crt\"");
}

settings! {
    /// Tokens of an identity provider, which count beside keys where auth is "keys".
    JWT: JwtEntries, JWT_TABLE.optional();

    /// The provider's keys as a JWK set, if there is no jwks_url or it has not answered yet.
    jwks_file: Option<Text>, example("\"/etc/longshore/jwks.json\"");
    /// The same, from the provider; asked again when a token names an unknown key, at most once a minute.
    jwks_url: Option<Url>, example("\"https://login.example.com/.well-known/jwks.json\"");
    /// What a token's iss must be.
    issuer: Option<Text>, example("\"https://login.example.com/\"");
    /// What a token's aud must have.
    audience: Option<Text>, example("\"longshore\"");
    /// The algorithms that count, if they fit the kind of the key.
    algorithms: Vec<JwtAlgorithm> =
        ["RS256", "PS256", "ES256", "EdDSA"].map(|name| JwtAlgorithm(name.to_owned())).to_vec();
    /// The claim that names the tenant, _all for the operator.
    tenant_claim: Text = Text("tenant".to_owned());
    /// The claim that has the scopes: words with blanks between them, or a list.
    scope_claim: Text = Text("scope".to_owned());
}
