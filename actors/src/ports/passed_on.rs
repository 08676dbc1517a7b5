//! Answers that are another's: methods of a trait that a type, or a part of it, has by the same names itself.

/// In the impl of a trait: these methods are those of the same names that what stands before `=>` has itself.
macro_rules! passed_on {
    ($to:expr => $(async fn $name:ident(&$this:ident $(, $arg:ident: $of:ty)*) $(-> $answer:ty)?;)+) => {
        $(async fn $name(&$this $(, $arg: $of)*) $(-> $answer)? {
            $to.$name($($arg),*).await
        })+
    };
}

pub(crate) use passed_on;
