//! Links among the documents lead somewhere: to a file that exists and, if they name a heading, to one that it has. And
//! the list of documents leads to each page of its folder.

use std::path::{Component, Path, PathBuf};

use super::files::File;

/// The list of documents, and the folder of which it names each page. The decisions have a list of their own.
const LIST: &str = "docs/README.md";
const LISTED: &str = "docs/";
const LISTED_ELSEWHERE: &str = "docs/decisions/";

/// Every link of every document that leads nowhere, and every page to which the list does not lead.
pub(super) fn breaches(root: &Path, files: &[File]) -> Vec<String> {
    let documents: Vec<&File> = files.iter().filter(|file| file.path.ends_with(".md")).collect();
    let mut found = unlisted(&documents);
    for document in &documents {
        for (number, link) in links(document).filter(|(_, link)| !link.contains(':')) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = resolved(&document.path, file);
            let headings = documents.iter().find(|other| Path::new(&other.path) == target).map(|other| headings(other));
            let leads = root.join(&target).exists()
                && (heading.is_empty() || headings.is_none_or(|all| all.iter().any(|known| known == heading)));
            if !leads {
                found.push(format!("{}:{number}: the link {link} leads nowhere", document.path));
            }
        }
    }
    found
}

fn unlisted(documents: &[&File]) -> Vec<String> {
    let list = documents.iter().filter(|document| document.path == LIST);
    let listed: Vec<PathBuf> = list.flat_map(|list| links(list).map(|(_, link)| resolved(LIST, link))).collect();
    let pages = documents.iter().map(|document| document.path.as_str()).filter(|path| {
        path.starts_with(LISTED) && !path.starts_with(LISTED_ELSEWHERE) && *path != LIST && !listed.is_empty()
    });
    let missing = pages.filter(|page| !listed.iter().any(|listed| listed == Path::new(page)));
    missing.map(|page| format!("{LIST}: it does not lead to {page}")).collect()
}

/// The lines outside of blocks of code.
fn prose(document: &File) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    document.lines().filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

fn links(document: &File) -> impl Iterator<Item = (usize, &str)> {
    prose(document).flat_map(|(number, line)| {
        let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        targets.map(move |target| (number, target))
    })
}

/// Headings as links name them: in small letters, with hyphens for spaces, without other signs.
fn headings(document: &File) -> Vec<String> {
    let titles =
        prose(document).filter_map(|(_, line)| line.strip_prefix('#').map(|rest| rest.trim_start_matches('#')));
    let name = |title: &str| -> String {
        let kept = title.trim().to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    titles.map(name).collect()
}

/// The path of a link's file from the root; of the document itself, if the link names none.
fn resolved(document: &str, file: &str) -> PathBuf {
    if file.is_empty() {
        return PathBuf::from(document);
    }
    let mut path = PathBuf::from(document);
    path.pop();
    for part in Path::new(file).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            part => path.push(part),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_leads_nowhere_is_found() {
        let file = |path: &str, text: &str| File { path: path.to_owned(), text: text.to_owned() };
        let files = [
            file(
                "README.md",
                "# A title, with `signs`\n[a](docs/contract.md#one) [b](docs/none.md) [c](#a-title-with-signs)",
            ),
            file(
                "docs/contract.md",
                "[up](../README.md#nowhere)\n```\n[code](none.md)\n```\n[web](https://x/y.md)\n## One",
            ),
        ];
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let expected = [
            "README.md:2: the link docs/none.md leads nowhere",
            "docs/contract.md:1: the link ../README.md#nowhere leads nowhere",
        ];
        assert_eq!(breaches(&root, &files), expected);
    }

    #[test]
    fn a_page_that_the_list_does_not_name_is_found() {
        let file = |path: &str, text: &str| File { path: path.to_owned(), text: text.to_owned() };
        let files = [file(LIST, "[a](contract.md)"), file("docs/contract.md", ""), file("docs/queues.md", "")];
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        assert_eq!(breaches(&root, &files), ["docs/README.md: it does not lead to docs/queues.md"]);
    }
}
