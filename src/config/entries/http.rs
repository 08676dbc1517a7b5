//! The settings `[http]`: where a node serves HTTP, and to whom.

use std::net::{Ipv4Addr, SocketAddr};

use crate::config::kind::Listen;
use crate::config::listen::Auth;
use crate::config::schema::Field::Setting as One;
use crate::config::schema::{Entry, Table};

pub(crate) static HTTP: Table = Table::of(
    "HTTP: the API under /v1, probes and metrics at /healthz, /readyz, /metrics.",
    &[One(&HTTP_LISTEN), One(&HTTP_AUTH), One(&HTTP_ALLOW_OPEN)],
);

pub(crate) static HTTP_LISTEN: Entry<Listen> = Entry::new(
    "listen",
    || Listen(Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)))),
    "Where the node listens; \"off\" turns it off. If nothing is set and the port is taken, it is a free port, which the \
     log names; a port that is set here and taken is an error.",
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
