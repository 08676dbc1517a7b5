//! Enums whose variants have names, on the wire or for people: variant and name stand side by side, once.

/// Makes an enum of variants with their names: `Scheduled = "scheduled",`. Beside it come the list of all, `ALL`, and
/// `as_str`, which gives the name.
#[macro_export]
macro_rules! named {
    ($(#[$of_all:meta])* $vis:vis enum $type:ident { $($(#[$of_one:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$of_all])*
        $vis enum $type {
            $($(#[$of_one])* $variant,)+
        }

        impl $type {
            /// Every one, in order.
            $vis const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// Its name.
            #[must_use]
            $vis const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}
