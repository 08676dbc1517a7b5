//! The options of a server, and the configuration file made from them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::Error;

/// How to start a [`Server`](crate::Server). The default suits a test: a free port, a temporary folder.
#[derive(Debug, Clone)]
pub struct Options {
    /// The binary; searched for by [`find_or_provision`](crate::find_or_provision) if `None`.
    pub binary: Option<PathBuf>,
    /// The port on 127.0.0.1; a free one, kept across restarts, if `None`.
    pub port: Option<u16>,
    /// The folder for configuration, log and JetStream's data, created if absent and kept afterwards; if `None`, a
    /// temporary one that is deleted with the server. Only one server at a time can use it.
    pub dir: Option<PathBuf>,
    /// The maximum number of bytes that JetStream may store in files. 10 GiB by default.
    pub max_file: u64,
    /// Added to the end of the configuration: accounts, permissions, limits. It must leave the log where it is.
    pub extra: String,
    /// Added inside the configuration's `jetstream` block: `sync_interval: always`, for example.
    pub extra_jetstream: String,
    /// How long a start may take; recovering a large folder takes long. 60 s by default.
    pub ready_within: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            binary: None,
            port: None,
            dir: None,
            max_file: 10 << 30,
            extra: String::new(),
            extra_jetstream: String::new(),
            ready_within: Duration::from_secs(60),
        }
    }
}

impl Options {
    /// The configuration file's text for a server with its home in `dir`, listening on `port`.
    pub(crate) fn configuration(&self, dir: &Path, port: u16) -> Result<String, Error> {
        let store = quoted(dir)?;
        let Options { max_file, extra, extra_jetstream, .. } = self;
        // Memory storage is limited, too: Longshore does not use it, and a stray stream must not fill the machine's
        // memory.
        Ok(format!(
            "# Written at every start.\n\
             server_name: \"longshore-{port}\"\n\
             listen: \"127.0.0.1:{port}\"\n\
             # Nearly every subject here comes once: a cache of them costs a tenth of all that the server does.\n\
             disable_sublist_cache: true\n\
             jetstream {{\n  store_dir: {store}\n  max_file_store: {max_file}\n  max_memory_store: 268435456\n  {extra_jetstream}\n}}\n\
             {extra}\n"
        ))
    }
}

/// A path as a string of the server's configuration language.
fn quoted(path: &Path) -> Result<String, Error> {
    let text = path.to_str().ok_or_else(|| Error::PathNotText { path: path.to_owned() })?;
    Ok(format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn paths_are_quoted_and_must_be_text() {
        assert_eq!(quoted(Path::new(r#"/a b/"c"\d"#)).unwrap(), r#""/a b/\"c\"\\d""#);
        let error = quoted(Path::new(OsStr::from_bytes(b"/\xff"))).unwrap_err();
        assert!(matches!(error, Error::PathNotText { .. }), "{error}");
    }
}
