//! What is shipped: a tree ready for `/`, and a Debian package made from it.

use std::fmt::Write as _;
use std::fs;

use anyhow::Result;
use xshell::cmd;

use crate::context::Context;
use crate::{build, step};

const VERSION: &str = env!("CARGO_PKG_VERSION");

pub fn package(context: &Context) -> Result<()> {
    build::build(context)?;
    let sh = &context.sh;
    let name = format!("postgresql-{}-idem", context.pg);
    let architecture = cmd!(sh, "dpkg --print-architecture").quiet().read()?;

    let parent = context.target().join("package");
    let stage = parent.join(format!("{name}.stage"));
    let deb = parent.join(format!("{name}_{VERSION}_{architecture}.deb"));
    let tree = context.package_dir();
    sh.remove_path(&stage)?;
    cmd!(sh, "cp -r {tree} {stage}").quiet().run()?;

    let library = stage.join(format!("usr/lib/postgresql/{}/lib/idem.so", context.pg));
    cmd!(sh, "strip --strip-unneeded {library}").quiet().run()?;
    let documents = stage.join("usr/share/doc").join(&name);
    sh.write_file(documents.join("copyright"), copyright(context)?)?;
    sh.write_file(stage.join("DEBIAN/control"), control(context.pg, &name, &architecture))?;
    // The build may have run with any umask.
    cmd!(sh, "chmod -R u=rwX,go=rX {stage}").quiet().run()?;
    let make = cmd!(sh, "dpkg-deb --root-owner-group --build {stage} {deb}");
    step::run("dpkg-deb", make.into(), "see that dpkg is whole")?;
    sh.remove_path(&stage)?;

    println!("{}\n{}", tree.display(), deb.display());
    Ok(())
}

fn control(pg: u16, name: &str, architecture: &str) -> String {
    format!(
        "Package: {name}\n\
         Version: {VERSION}\n\
         Architecture: {architecture}\n\
         Maintainer: The idem authors <idem@localhost>\n\
         Section: database\n\
         Priority: optional\n\
         Depends: postgresql-{pg}, libc6, libgcc-s1\n\
         Description: exactly-once message consumers inside PostgreSQL {pg}\n \
         The claim of a message, the business writes and the messages that result from it\n \
         commit in one transaction, or none of them does.\n"
    )
}

/// Both licences in full, in Debian's machine-readable form.
fn copyright(context: &Context) -> Result<String> {
    let mut text = String::from(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
         Upstream-Name: idem\n\n\
         Files: *\n\
         Copyright: 2026 The idem authors\n\
         License: MIT or Apache-2.0\n",
    );
    for (name, file) in [("MIT", "LICENSE-MIT"), ("Apache-2.0", "LICENSE-APACHE")] {
        write!(text, "\nLicense: {name}\n")?;
        for line in fs::read_to_string(context.root.join(file))?.lines() {
            // A line of the text is indented, an empty one is a dot.
            if line.trim().is_empty() {
                text.push_str(" .\n")
            } else {
                writeln!(text, " {line}")?
            }
        }
    }
    Ok(text)
}
