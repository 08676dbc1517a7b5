//! Enums whose variants have names, on the wire or for people: variant and name stand side by side, once.

/// Makes an enum of variants with their names: `Scheduled = "scheduled",`. Beside it come the lists of all, `ALL` and
/// `NAMES`, `as_str`, which gives the name, and `parse`, which reads it.
#[macro_export]
macro_rules! named {
    ($(#[$of_all:meta])* $vis:vis enum $type:ident { $($(#[$of_one:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$of_all])*
        $vis enum $type {
            $($(#[$of_one])* $variant,)+
        }

        #[allow(dead_code, reason = "hardly any enum needs all of it")]
        impl $type {
            /// Every one, in order.
            $vis const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];
            /// Their names, in the same order.
            $vis const NAMES: [&'static str; [$($name),+].len()] = [$($name),+];

            /// Its name.
            #[must_use]
            $vis const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// The one of this name.
            $vis fn parse(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|one| one.as_str() == name)
            }
        }
    };
}
