//! The workspace of this repository: its root, and a cargo command in it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the root of the workspace. Everything that is built, copied or started is in its
/// `target` directory.
#[must_use]
pub fn workspace_root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

/// Returns a cargo command that runs in the root of the workspace.
///
/// Cargo describes the package of a program or test that it runs in variables, for example
/// `CARGO_PKG_NAME`. The command does not inherit them. Otherwise cargo would run the build scripts
/// that read these variables again, and would then compile again whatever depends on them.
#[must_use]
pub fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace_root());
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(describes_a_package) {
            command.env_remove(name);
        }
    }
    command
}

fn describes_a_package(variable: &str) -> bool {
    let prefixes = [
        "CARGO_PKG_",
        "CARGO_MANIFEST_",
        "CARGO_BIN_",
        "CARGO_CRATE_",
    ];
    prefixes.iter().any(|prefix| variable.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test itself was run by cargo, so it has such variables.
    #[test]
    fn cargo_inherits_no_description_of_a_package() {
        assert!(env::var_os("CARGO_PKG_NAME").is_some());
        let command = cargo();
        let removed = command.get_envs().filter(|(_, value)| value.is_none());
        let removed: Vec<_> = removed.filter_map(|(name, _)| name.to_str()).collect();
        assert!(removed.contains(&"CARGO_PKG_NAME"), "{removed:?}");
        assert!(removed.contains(&"CARGO_MANIFEST_DIR"), "{removed:?}");
        assert!(!removed.contains(&"CARGO_HOME"), "{removed:?}");
    }
}
