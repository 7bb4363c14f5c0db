//! The script that CREATE EXTENSION runs is generated, and a copy of it is committed: a change of what users get is seen in
//! review, and upgrades are written against it.

use std::path::PathBuf;

use anyhow::{Result, bail};
use xshell::cmd;

use crate::build;
use crate::context::Context;

/// Writes the committed copy.
pub fn write(context: &Context) -> Result<()> {
    build::build(context)?;
    let committed = committed(context);
    context.sh.write_file(&committed, generated(context)?)?;
    eprintln!("written: {}", committed.display());
    Ok(())
}

/// Fails, with the difference, when the committed copy is not what the build has generated.
pub fn check(context: &Context) -> Result<()> {
    let committed = committed(context);
    let generated = generated(context)?;
    let sh = &context.sh;
    let diff = cmd!(sh, "diff --unified --new-file {committed} -")
        .stdin(generated)
        .quiet()
        .ignore_status()
        .output()?;
    if !diff.status.success() {
        let diff = String::from_utf8_lossy(&diff.stdout);
        bail!(
            "the install script is not the one in {}; if that is meant, run `cargo xtask snapshot` and commit it\n{diff}",
            committed.display()
        );
    }
    Ok(())
}

fn file_name() -> String {
    // The workspace has one version.
    format!("idem--{}.sql", env!("CARGO_PKG_VERSION"))
}

fn committed(context: &Context) -> PathBuf {
    context.root.join("sql/install").join(file_name())
}

fn generated(context: &Context) -> Result<String> {
    let directory = context
        .package_dir()
        .join(format!("usr/share/postgresql/{}/extension", context.pg));
    Ok(without_line_numbers(&context.sh.read_file(directory.join(file_name()))?))
}

/// Every object is headed by the place in the code that it comes from. The file says something, the line would make every
/// change of the code one of the script.
fn without_line_numbers(script: &str) -> String {
    let mut text = String::new();
    for line in script.lines() {
        let place = line.strip_prefix("-- ").and_then(|place| place.rsplit_once(':'));
        match place {
            Some((file, number)) if file.ends_with(".rs") && number.parse::<u32>().is_ok() => text.extend(["-- ", file]),
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
    fn only_the_line_numbers_of_the_code_are_left_out() {
        let script = "-- extension/src/claim.rs:12\n-- 10:12\nSELECT '-- x.rs:1';\n-- see a.rs: 7\n";
        let expected = "-- extension/src/claim.rs\n-- 10:12\nSELECT '-- x.rs:1';\n-- see a.rs: 7\n";
        assert_eq!(without_line_numbers(script), expected);
    }
}
