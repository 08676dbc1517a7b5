//! Claims whose answers were lost.

use std::collections::HashSet;
use std::sync::Mutex;

use longshore_domain::SmolStr;

use crate::runtime::Unpoisoned as _;

/// Claims without a clear answer that are remembered: more than a node has workers.
const MAX_UNCLEAR: usize = 16_384;

/// Tokens of claims whose answers were lost. If such a claim turns out to be stored, its attempt was never started:
/// this node may start it, or leave that to the node that the job was delivered to.
#[derive(Debug, Default)]
pub(crate) struct UnclearClaims(Mutex<HashSet<SmolStr>>);

impl UnclearClaims {
    pub(crate) fn remember(&self, token: &SmolStr) {
        let mut tokens = self.0.lock().unpoisoned();
        if tokens.len() < MAX_UNCLEAR {
            tokens.insert(token.clone());
        }
    }

    /// Whether it is one; forgets it.
    pub(crate) fn take(&self, token: &SmolStr) -> bool {
        self.0.lock().unpoisoned().remove(token)
    }
}
