//! Makes the packages with cargo-deb: the extension, also as a tree that can be copied to `/`, and
//! the program `idem-relay`.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use xshell::cmd;

use crate::build::{self, Variant};
use crate::context::Context;
use crate::{install_script, setup, step, tool};

const CARGO_DEB: &str = "3.8.0";

/// Makes the packages, and prints where they are. The fields and files of the packages are in
/// `extension/Cargo.toml` and `relay/Cargo.toml`.
pub fn package(context: &Context) -> Result<()> {
    setup::setup(context)?;
    build::build(context)?;
    install_script::ensure_fits(&context.root)?;
    let (pg, tree) = (context.pg, context.package_dir(Variant::Shipped));
    let library = tree.join(format!("usr/lib/postgresql/{pg}/lib/idem.so"));
    ensure_no_pause_points(&library)?;
    let sh = &context.sh;
    cmd!(sh, "strip --strip-unneeded {library}").quiet().run()?;
    println!("{}", tree.display());

    let cargo_deb = tool::install(context, "cargo-deb", CARGO_DEB)?;
    let variant = format!("--variant={}", context.feature());
    for arguments in [
        &["--package=idem", "--no-build", &variant][..],
        &["--package=idem-relay"],
    ] {
        // cargo-deb prints the path of the package.
        let mut command = Command::new(&cargo_deb);
        command.current_dir(&context.root).args(arguments);
        step::show(command)?;
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use xshell::Shell;

    use super::*;

    #[test]
    fn library_with_pause_points_is_not_packaged() {
        let directory = Shell::new().unwrap().create_temp_dir().unwrap();
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

    /// The settings may contain passwords, and an update must not replace them.
    #[test]
    fn settings_of_the_relay_are_private_and_kept() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let manifest = fs::read_to_string(root.join("relay/Cargo.toml")).unwrap();
        for line in [
            r#"    ["debian/idem-relay.toml", "etc/idem-relay/", "600"],"#,
            r#"conf-files = ["/etc/idem-relay/idem-relay.toml"]"#,
        ] {
            let is_there = manifest.lines().any(|found| found == line);
            assert!(is_there, "{line} is not in the manifest");
        }
    }

    #[test]
    fn unit_of_the_relay_is_valid_and_reads_its_settings() {
        let sh = Shell::new().unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let text = fs::read_to_string(root.join("relay/debian/idem-relay.service")).unwrap();
        for line in [
            "DynamicUser=yes",
            "LoadCredential=config:/etc/idem-relay/idem-relay.toml",
            "Type=exec",
        ] {
            let is_there = text.lines().any(|found| found == line);
            assert!(is_there, "{line} is not in the unit");
        }
        // systemd-analyze comes with systemd, which a build machine may not have.
        let version = cmd!(sh, "systemd-analyze --version")
            .quiet()
            .ignore_stdout();
        if version.run().is_ok() {
            let directory = sh.create_temp_dir().unwrap();
            let unit = directory.path().join("idem-relay.service");
            // systemd-analyze checks that the program exists.
            let here = text.replace("ExecStart=/usr/bin/idem-relay", "ExecStart=/bin/true");
            fs::write(&unit, here).unwrap();
            let verify = cmd!(sh, "systemd-analyze verify --man=no {unit}").ignore_status();
            let verified = verify.output().unwrap();
            let printed = String::from_utf8_lossy(&verified.stderr).into_owned();
            let is_valid = verified.status.success() && !printed.contains("idem-relay.service:");
            assert!(is_valid, "{printed}");
        }
    }
}
