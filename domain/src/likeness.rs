//! Which known name a misspelt one may mean. What follows from that is for others to decide.

/// One mistake in four characters: it lets a slip in a short name pass, and keeps `email.send` and `email.bulk` apart.
const ALIKE: f64 = 0.75;
/// Maximum bytes of a name that may be like another. Clients send names of any length, and comparing long ones takes
/// seconds.
const COMPARED: usize = 160;

/// The known name that is most like this one, if one is so like it that it may be meant.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > COMPARED {
        return None;
    }
    let wanted = folded(name);
    let alike = known.into_iter().map(|of| (strsim::normalized_damerau_levenshtein(&folded(of), &wanted), of));
    let alike = alike.filter(|(likeness, _)| *likeness >= ALIKE);
    alike.max_by(|a, b| a.0.total_cmp(&b.0).then_with(|| b.1.cmp(a.1))).map(|(_, of)| of)
}

/// A name without what people mix up in it.
fn folded(name: &str) -> String {
    name.to_ascii_lowercase().replace(['_', '-'], ".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_known_one_can_be_as_long_as_is_like_none() {
        let (long, longer) = ("x".repeat(COMPARED), "x".repeat(COMPARED + 1));
        assert_eq!(nearest(&long, [longer.as_str()]), Some(longer.as_str()));
        assert_eq!(nearest(&longer, [longer.as_str()]), None, "it is not compared");
    }
}
