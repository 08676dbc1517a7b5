//! Claims whose answers were lost.

use std::sync::Mutex;

use longshore_domain::SmolStr;

use crate::runtime::Unpoisoned as _;
use crate::runtime::last_added::LastAdded;

/// Claims without a clear answer that are remembered: more than a node has workers.
const MAX_UNCLEAR: usize = 16_384;

/// Tokens of claims whose answers were lost. If such a claim turns out to be stored, its attempt was never started:
/// this node may start it, or leave that to the node that the job was delivered to.
#[derive(Debug, Default)]
pub(crate) struct UnclearClaims(Mutex<LastAdded<SmolStr, MAX_UNCLEAR>>);

impl UnclearClaims {
    /// Adds one; the oldest is forgotten if there are too many.
    pub(crate) fn remember(&self, token: &SmolStr) {
        self.0.lock().unpoisoned().add(token.clone());
    }

    /// Whether it is one; forgets it.
    pub(crate) fn take(&self, token: &SmolStr) -> bool {
        self.0.lock().unpoisoned().remove(token)
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
