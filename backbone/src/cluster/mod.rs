//! What nodes know of one another and share: presence, questions, limits, breakers, run-time settings, webhooks,
//! the types that were ever served.

/// Makes a node's way to what a module keeps in buckets.
macro_rules! way {
    ($(#[$doc:meta])* $way:ident, $get:ident) => {
        $(#[$doc])*
        /// Who has only this reaches no job. Cheap to clone.
        #[derive(Debug, Clone)]
        pub struct $way(pub(super) crate::Backbone);

        impl crate::Backbone {
            $(#[$doc])*
            pub fn $get(&self) -> $way {
                $way(self.clone())
            }
        }

        impl $way {
            /// Changes whenever the connection has been re-established: what was published meanwhile did not come.
            pub fn connected(&self) -> tokio::sync::watch::Receiver<u64> {
                self.0.control().connected()
            }
        }
    };
}

pub mod api_keys;
pub mod breakers;
pub mod bucket_space;
pub mod concurrency;
pub mod control;
pub mod deliveries;
pub mod holders;
pub mod limits;
pub mod nodes;
pub mod questions;
pub mod run_time_settings;
pub mod served_types;
pub mod webhooks;
