//! Claims whose answers were lost.

use std::collections::{HashSet, VecDeque};
use std::sync::Mutex;

use longshore_domain::SmolStr;

use crate::runtime::Unpoisoned as _;

/// Claims without a clear answer that are remembered: more than a node has workers.
const MAX_UNCLEAR: usize = 16_384;

/// Tokens of claims whose answers were lost. If such a claim turns out to be stored, its attempt was never started:
/// this node may start it, or leave that to the node that the job was delivered to.
#[derive(Debug, Default)]
pub(crate) struct UnclearClaims {
    /// Those that nobody has asked for, and all in the order in which they were added.
    tokens: Mutex<(HashSet<SmolStr>, VecDeque<SmolStr>)>,
}

impl UnclearClaims {
    /// Adds one; the oldest is forgotten if there are too many.
    pub(crate) fn remember(&self, token: &SmolStr) {
        let mut tokens = self.tokens.lock().unpoisoned();
        tokens.0.insert(token.clone());
        tokens.1.push_back(token.clone());
        if tokens.1.len() > MAX_UNCLEAR
            && let Some(oldest) = tokens.1.pop_front()
        {
            tokens.0.remove(&oldest);
        }
    }

    /// Whether it is one; forgets it.
    pub(crate) fn take(&self, token: &SmolStr) -> bool {
        self.tokens.lock().unpoisoned().0.remove(token)
    }
}

#[cfg(test)]
mod tests {
    use longshore_domain::format_smolstr;

    use super::*;

    #[test]
    fn of_too_many_claims_the_oldest_are_forgotten() {
        let claims = UnclearClaims::default();
        let token = |number: usize| format_smolstr!("wn1-{number}");
        (0..=MAX_UNCLEAR).for_each(|number| claims.remember(&token(number)));
        assert!(!claims.take(&token(0)) && claims.take(&token(1)));
        assert!(claims.take(&token(MAX_UNCLEAR)) && !claims.take(&token(MAX_UNCLEAR)));
    }
}
