//! Writes the script that CREATE EXTENSION runs. The script is generated, a release commits a copy
//! of it, and upgrades are written against that copy.

use std::path::PathBuf;

use anyhow::Result;

use crate::build::{self, Variant};
use crate::context::Context;

/// Writes the script of this version to `sql/install`: once for each release, and not for every
/// change.
pub fn write(context: &Context) -> Result<()> {
    build::build(context)?;
    let committed = committed(context);
    context.sh.write_file(&committed, generated(context)?)?;
    eprintln!("wrote {}", committed.display());
    Ok(())
}

fn file_name() -> String {
    // All packages of the workspace have the same version.
    format!("idem--{}.sql", env!("CARGO_PKG_VERSION"))
}

fn committed(context: &Context) -> PathBuf {
    context.root.join("sql/install").join(file_name())
}

fn generated(context: &Context) -> Result<String> {
    let directory = context
        .package_dir(Variant::Shipped)
        .join(format!("usr/share/postgresql/{}/extension", context.pg));
    Ok(without_line_numbers(
        &context.sh.read_file(directory.join(file_name()))?,
    ))
}

/// Removes the line numbers of places in the code. pgrx writes the place in the code above each
/// object, and the line number changes with unrelated code.
fn without_line_numbers(script: &str) -> String {
    let mut text = String::new();
    for line in script.lines() {
        let place = line
            .strip_prefix("-- ")
            .and_then(|place| place.rsplit_once(':'));
        match place {
            Some((file, number)) if file.ends_with(".rs") && number.parse::<u32>().is_ok() => {
                text.extend(["-- ", file])
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_line_numbers_of_places_in_the_code_are_removed() {
        let script =
            "-- extension/src/claim.rs:12\n-- 10:12\nSELECT '-- x.rs:1';\n-- see a.rs: 7\n";
        let expected = "-- extension/src/claim.rs\n-- 10:12\nSELECT '-- x.rs:1';\n-- see a.rs: 7\n";
        assert_eq!(without_line_numbers(script), expected);
    }
}
