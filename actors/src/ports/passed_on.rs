//! Answers that are another's: methods of a trait that a type has by the same names itself.

/// In the impl of a trait: these methods are the type's own of the same names.
macro_rules! passed_on {
    ($(async fn $name:ident(&self $(, $arg:ident: $of:ty)*) $(-> $answer:ty)?;)+) => {
        $(async fn $name(&self $(, $arg: $of)*) $(-> $answer)? {
            self.$name($($arg),*).await
        })+
    };
}

pub(crate) use passed_on;
