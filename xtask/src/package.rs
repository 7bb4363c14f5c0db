//! Makes the packages: the extension as a tree that can be copied to `/` and as a Debian package,
//! and the program `idem-relay` as another Debian package.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use xshell::{Shell, cmd};

use crate::build::{self, Variant};
use crate::context::Context;
use crate::install_script::{self, VERSION};
use crate::{setup, step};

pub fn package(context: &Context) -> Result<()> {
    println!("{}", context.package_dir(Variant::Shipped).display());
    for deb in [extension(context)?, relay(context)?] {
        println!("{}", deb.display());
    }
    Ok(())
}

fn extension(context: &Context) -> Result<PathBuf> {
    setup::setup(context)?;
    build::build(context)?;
    install_script::ensure_fits(&context.root)?;
    let pg = context.pg;
    let deb = Deb::begin(context, format!("postgresql-{pg}-idem"))?;
    let (sh, tree, stage) = (
        &context.sh,
        context.package_dir(Variant::Shipped),
        &deb.stage,
    );
    cmd!(sh, "cp -r {tree}/. {stage}").quiet().run()?;
    let library = stage.join(format!("usr/lib/postgresql/{pg}/lib/idem.so"));
    ensure_no_pause_points(&library)?;
    cmd!(sh, "strip --strip-unneeded {library}").quiet().run()?;
    deb.finish(&format!(
        "Section: database\n\
         Depends: postgresql-{pg}, libc6, libgcc-s1\n\
         Description: exactly-once message consumers inside PostgreSQL {pg}\n \
         The claim of a message, the business writes and the messages that result from it\n \
         commit in one transaction, or none of them does.\n"
    ))
}

/// The symbol that `extension/src/pause.rs` exports.
const PAUSE_POINTS_SYMBOL: &[u8] = b"IDEM_HAS_PAUSE_POINTS";

/// Fails when the library has pause points: a library in which a session can stop at a pause point
/// must not be shipped.
fn ensure_no_pause_points(library: &Path) -> Result<()> {
    let content =
        fs::read(library).with_context(|| format!("cannot read {}", library.display()))?;
    let found = content
        .windows(PAUSE_POINTS_SYMBOL.len())
        .any(|window| window == PAUSE_POINTS_SYMBOL);
    ensure!(
        !found,
        "{} was built with pause points and must not be packaged",
        library.display()
    );
    Ok(())
}

fn relay(context: &Context) -> Result<PathBuf> {
    let build = context.cargo(["build", "--release", "--package", "idem-relay"]);
    step::run(
        "building idem-relay (some minutes)",
        build,
        "run `cargo build --release -p idem-relay` to see all errors of the compiler",
    )?;
    let deb = Deb::begin(context, "idem-relay".to_owned())?;
    let (sh, built) = (&context.sh, context.target().join("release/idem-relay"));
    let program = deb.stage.join("usr/bin/idem-relay");
    sh.create_dir(deb.stage.join("usr/bin"))?;
    cmd!(sh, "strip --strip-unneeded -o {program} {built}")
        .quiet()
        .run()?;
    stage_service(&context.root, &deb.stage)?;
    deb.finish(
        "Section: net\n\
         Depends: libc6, libgcc-s1, libssl3, zlib1g, ca-certificates\n\
         Description: publishes the outbox of idem to a message broker\n \
         Effects that consumers recorded in PostgreSQL go to RabbitMQ, NATS JetStream or\n \
         Kafka, in order, confirmed, and under the same message id each time.\n",
    )
}

/// Copies the systemd unit, and the sample of its settings. An upgrade keeps settings that were
/// edited.
fn stage_service(root: &Path, stage: &Path) -> Result<()> {
    let from = root.join("relay/debian");
    for (file, to) in [
        (
            "idem-relay.service",
            "usr/lib/systemd/system/idem-relay.service",
        ),
        ("idem-relay.toml", SETTINGS),
    ] {
        let to = stage.join(to);
        if let Some(directory) = to.parent() {
            fs::create_dir_all(directory)?;
        }
        fs::copy(from.join(file), &to)
            .with_context(|| format!("cannot copy {file} to {}", to.display()))?;
    }
    let control = stage.join("DEBIAN");
    fs::create_dir_all(&control)?;
    fs::write(control.join("conffiles"), format!("/{SETTINGS}\n"))?;
    Ok(())
}

/// The file of the settings. It may contain passwords, so only root may read it.
const SETTINGS: &str = "etc/idem-relay/idem-relay.toml";

/// A Debian package that is being made.
struct Deb<'c> {
    context: &'c Context,
    name: String,
    architecture: String,
    /// The directory with the files that the package installs.
    stage: PathBuf,
}

impl<'c> Deb<'c> {
    fn begin(context: &'c Context, name: String) -> Result<Self> {
        let sh = &context.sh;
        let architecture = cmd!(sh, "dpkg --print-architecture").quiet().read()?;
        let stage = context
            .target()
            .join("package")
            .join(format!("{name}.stage"));
        sh.remove_path(&stage)?;
        sh.create_dir(&stage)?;
        Ok(Self {
            context,
            name,
            architecture,
            stage,
        })
    }

    /// Makes the package. `fields` are the control fields in which the packages differ.
    fn finish(self, fields: &str) -> Result<PathBuf> {
        let Self {
            context,
            name,
            architecture,
            stage,
        } = self;
        let sh = &context.sh;
        let documents = stage.join("usr/share/doc").join(&name);
        sh.write_file(documents.join("copyright"), copyright(context)?)?;
        let control = format!(
            "Package: {name}\n\
             Version: {VERSION}\n\
             Architecture: {architecture}\n\
             Maintainer: The idem authors <idem@localhost>\n\
             Priority: optional\n\
             {fields}"
        );
        sh.write_file(stage.join("DEBIAN/control"), control)?;
        let file = format!("{name}_{VERSION}_{architecture}.deb");
        let deb = context.target().join("package").join(file);
        pack(sh, &stage, &deb)?;
        sh.remove_path(&stage)?;
        Ok(deb)
    }
}

fn pack(sh: &Shell, stage: &Path, deb: &Path) -> Result<()> {
    // The modes are set explicitly, because the build may have run with any umask.
    cmd!(sh, "chmod -R u=rwX,go=rX {stage}").quiet().run()?;
    let settings = stage.join(SETTINGS);
    if sh.path_exists(&settings) {
        cmd!(sh, "chmod 600 {settings}").quiet().run()?;
    }
    let make = cmd!(sh, "dpkg-deb --root-owner-group --build {stage} {deb}");
    step::run(
        "dpkg-deb",
        make.into(),
        "check that dpkg is installed completely",
    )
}

/// Returns both licences in full, in Debian's machine-readable format.
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
            // In this format, a line of a text is indented, and an empty line is written as a dot.
            if line.trim().is_empty() {
                text.push_str(" .\n")
            } else {
                writeln!(text, " {line}")?
            }
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
    }

    #[test]
    fn package_of_the_relay_has_its_unit_and_settings() {
        let sh = Shell::new().unwrap();
        let directory = sh.create_temp_dir().unwrap();
        let (stage, deb) = (
            directory.path().join("stage"),
            directory.path().join("relay.deb"),
        );
        fs::create_dir_all(stage.join("usr/bin")).unwrap();
        fs::write(stage.join("usr/bin/idem-relay"), "").unwrap();
        sh.write_file(
            stage.join("DEBIAN/control"),
            "Package: idem-relay\nVersion: 1\nArchitecture: all\nMaintainer: a <a@localhost>\n\
             Description: a\n",
        )
        .unwrap();
        stage_service(root(), &stage).unwrap();
        pack(&sh, &stage, &deb).unwrap();
        let contents = cmd!(sh, "dpkg-deb --contents {deb}").read().unwrap();
        for (mode, path) in [
            (
                "-rw-r--r-- root/root",
                "./usr/lib/systemd/system/idem-relay.service",
            ),
            ("-rw------- root/root", "./etc/idem-relay/idem-relay.toml"),
        ] {
            let is_there = |line: &str| line.starts_with(mode) && line.ends_with(path);
            assert!(
                contents.lines().any(is_there),
                "{mode} {path} is not in\n{contents}"
            );
        }
        let conffiles = cmd!(sh, "dpkg-deb --info {deb} conffiles").read().unwrap();
        assert_eq!(conffiles, "/etc/idem-relay/idem-relay.toml");
    }

    #[test]
    fn unit_of_the_relay_is_valid_and_reads_its_settings() {
        let sh = Shell::new().unwrap();
        let directory = sh.create_temp_dir().unwrap();
        stage_service(root(), directory.path()).unwrap();
        let unit = directory
            .path()
            .join("usr/lib/systemd/system/idem-relay.service");
        let text = fs::read_to_string(&unit).unwrap();
        for line in [
            "DynamicUser=yes",
            "LoadCredential=config:/etc/idem-relay/idem-relay.toml",
            "Type=exec",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is not in the unit"
            );
        }
        // systemd-analyze comes with systemd, which a build machine may not have.
        if cmd!(sh, "systemd-analyze --version")
            .quiet()
            .ignore_stdout()
            .run()
            .is_ok()
        {
            // systemd-analyze checks that the program exists.
            let here = text.replace("ExecStart=/usr/bin/idem-relay", "ExecStart=/bin/true");
            fs::write(&unit, here).unwrap();
            let verified = cmd!(sh, "systemd-analyze verify --man=no {unit}")
                .ignore_status()
                .output()
                .unwrap();
            let printed = String::from_utf8_lossy(&verified.stderr).into_owned();
            assert!(
                verified.status.success() && !printed.contains("idem-relay.service:"),
                "{printed}"
            );
        }
    }

    #[test]
    fn library_with_pause_points_is_not_packaged() {
        let directory = xshell::Shell::new().unwrap().create_temp_dir().unwrap();
        let library = directory.path().join("idem.so");
        fs::write(&library, b"\x7fELF \0idem_try_claim\0").unwrap();
        ensure_no_pause_points(&library).unwrap();
        fs::write(
            &library,
            b"\x7fELF \0idem_try_claim\0IDEM_HAS_PAUSE_POINTS\0",
        )
        .unwrap();
        let error = ensure_no_pause_points(&library).unwrap_err().to_string();
        assert!(error.contains("built with pause points"), "{error}");
    }
}
