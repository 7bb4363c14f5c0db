//! The order of the SQL files.

/// Puts SQL files into the install script, in the given order: each after the file before it. The
/// last file comes after everything else.
macro_rules! sql_files {
    ($name:tt $path:tt, $($rest:tt)+) => {
        pgrx::extension_sql_file!($path, name = $name, bootstrap);
        sql_files!(after $name; $($rest)+);
    };
    (after $before:tt; $name:tt $path:tt $(,)?) => {
        pgrx::extension_sql_file!($path, name = $name, finalize);
    };
    (after $before:tt; $name:tt $path:tt, $($rest:tt)+) => {
        pgrx::extension_sql_file!($path, name = $name, requires = [$before]);
        sql_files!(after $name; $($rest)+);
    };
}
