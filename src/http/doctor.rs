//! What `longshore doctor` finds, for those who have a browser alone: the program that runs the node looks, with the
//! node's own login and settings. This shows the answer, and sees that one look is taken at a time.

use std::fmt;
use std::sync::{Arc, OnceLock};

use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio::sync::Mutex;

/// Looks for faults of the set-up.
pub struct Doctor {
    look: Box<dyn Fn() -> BoxFuture<'static, Value> + Send + Sync>,
    one_at_a_time: Mutex<()>,
}

impl Doctor {
    /// `look` answers with `findings` and the `worst` of them.
    pub fn new<F: Future<Output = Value> + Send + 'static>(look: impl Fn() -> F + Send + Sync + 'static) -> Self {
        Self { look: Box::new(move || Box::pin(look())), one_at_a_time: Mutex::default() }
    }

    pub(super) async fn looks(&self) -> Value {
        let _alone = self.one_at_a_time.lock().await;
        (self.look)().await
    }
}

impl fmt::Debug for Doctor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Doctor").finish_non_exhaustive()
    }
}

/// Known once the program has said it.
pub(super) type Known = Arc<OnceLock<Doctor>>;
