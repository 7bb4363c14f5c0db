//! Enums with a name for each value.

/// Declares an enum, the list of its values, and the names of the values.
macro_rules! named {
    ($(#[$attribute:meta])* $enum:ident { $($value:ident = $name:literal,)* }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $enum {
            $(#[doc = $name] $value,)*
        }

        impl $enum {
            /// All values, in the order of their declaration.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$value),*];

            /// Returns the name of the row in the ledger.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)*
                }
            }
        }
    };
}

pub(crate) use named;
