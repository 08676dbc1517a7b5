//! The dashboard: the files of this folder, as they are, from the program; only the page has a list of modules put in.
//!
//! They are written by hand as modules that browsers read, so nothing builds them; `vendor` is lit-html, which
//! `cargo xtask vendor` fetches and compares. Types are declared in JSDoc, and `cargo xtask types` checks them. They
//! hold no secret and are open to everybody; what the page shows, it asks the API for, as any client does. It may not
//! decide anything: no file depends on who asks for it.

use std::sync::LazyLock;

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;

use super::gateway::conditions;

/// The browser runs and shows nothing that does not come from this node, and no other page may frame it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

macro_rules! files {
    ($($name:literal)+) => { [$(($name, &include_bytes!($name)[..])),+] };
}

#[derive(Debug)]
struct File {
    name: &'static str,
    bytes: &'static [u8],
    /// What it is known by: it changes with the file.
    tag: HeaderValue,
}

/// All that is served: the first is the page itself, which names all modules, so that a browser asks for them at once.
static FILES: LazyLock<Vec<File>> = LazyLock::new(|| {
    let files = files! {
        "icon.svg" "style.css" "vendor/lit-html.js" "vendor/directive.js" "vendor/directive-helpers.js"
        "vendor/directives/live.js" "vendor/directives/repeat.js" "vendor/LICENSE"
        "main.js" "state.js" "router.js" "api.js" "stream.js" "widgets.js" "format.js" "bulk.js" "csv.js" "counters.js"
        "timeline.js" "login.js" "overview.js" "queues.js" "runs.js" "run.js" "dlq.js" "schedules.js" "limits.js"
        "nodes.js" "events.js" "audit.js" "settings.js" "keys.js" "faults.js" "webhooks.js" "submit.js"
    };
    let modules = files.iter().map(|file| file.0).filter(|name| name.ends_with(".js") && *name != "main.js");
    let links = modules.map(|name| format!("<link rel=\"modulepreload\" href=\"page/{name}\">\n")).collect::<String>();
    let page: &'static str = include_str!("index.html").replace("<!-- modules -->\n", &links).leak();
    let file = |(name, bytes)| File { name, bytes, tag: conditions::etag(bytes).expect("base64 is a header's value") };
    [("index.html", page.as_bytes())].into_iter().chain(files).map(file).collect()
});

/// The page at `/`, and what it is made of under `/page/`.
pub(super) fn router() -> Router {
    Router::new().route("/", get(async |headers: HeaderMap| served(0, &headers))).route("/page/{*name}", get(file))
}

async fn file(Path(name): Path<String>, headers: HeaderMap) -> Response {
    match FILES.iter().position(|file| file.name == name) {
        Some(at) => served(at, &headers),
        None => (StatusCode::NOT_FOUND, "there is no such file of the dashboard\n").into_response(),
    }
}

/// The file, unless the browser has it. A browser asks again each time, so that a new version of the program is seen.
fn served(at: usize, headers: &HeaderMap) -> Response {
    let file = &FILES[at];
    let is_known = conditions::is_known(headers, &file.tag);
    let answer = if is_known { StatusCode::NOT_MODIFIED.into_response() } else { file.bytes.into_response() };
    let media_type = match file.name.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/plain; charset=utf-8",
    };
    let headers = [
        (header::CONTENT_TYPE, media_type),
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, [(header::ETAG, file.tag.clone())], answer).into_response()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    fn files_in(folder: &Path, prefix: &str, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            if entry.file_type().unwrap().is_dir() {
                files_in(&entry.path(), &format!("{name}/"), found);
            } else {
                found.insert(name);
            }
        }
    }

    #[test]
    fn every_file_of_the_folder_is_served_under_the_policy_and_sent_once() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/http/page");
        let mut found = BTreeSet::new();
        files_in(&folder, "", &mut found);
        // For who writes the modules.
        found.retain(|name| !name.ends_with(".d.ts") && !["mod.rs", "jsconfig.json"].contains(&name.as_str()));
        let served_names: BTreeSet<String> = FILES.iter().map(|file| file.name.to_owned()).collect();
        assert_eq!(found, served_names);

        for (at, file) in FILES.iter().enumerate() {
            let answer = served(at, &HeaderMap::new());
            let of = |name| answer.headers()[&name].to_str().unwrap();
            assert_eq!(
                (answer.status(), of(header::CONTENT_SECURITY_POLICY)),
                (StatusCode::OK, POLICY),
                "{}",
                file.name
            );
            assert!(!POLICY.contains("unsafe") && !POLICY.contains("  "), "{POLICY}");
            let again = HeaderMap::from_iter([(header::IF_NONE_MATCH, answer.headers()[header::ETAG].clone())]);
            let again = served(at, &again);
            assert_eq!(again.status(), StatusCode::NOT_MODIFIED, "{}", file.name);
            assert_eq!(again.headers()[header::CONTENT_SECURITY_POLICY], POLICY);
        }
    }

    /// A browser asks for all modules at once, and not for those that one names once it has read that one.
    #[test]
    fn every_module_is_asked_for_with_the_page() {
        let page = std::str::from_utf8(FILES[0].bytes).unwrap();
        for file in FILES.iter().filter(|file| file.name.ends_with(".js")) {
            assert!(page.contains(&format!("=\"page/{}\"", file.name)), "index.html does not name {}", file.name);
        }
    }

    /// The page works under any path, asks nobody else, and has no code or style that the policy would stop.
    #[test]
    fn the_files_name_no_other_place_and_nothing_inline() {
        for file in FILES.iter().filter(|file| !file.name.starts_with("vendor/")) {
            let text = std::str::from_utf8(file.bytes).unwrap();
            let elsewhere =
                ["http://", "https://", "=\"/", "'/v1", "unsafeHTML", "innerHTML", " style=\"", "<style", "eval("];
            for word in elsewhere {
                let text = text.replace("http://www.w3.org/2000/svg", "");
                assert!(!text.contains(word), "{} has {word}", file.name);
            }
        }
    }
}
