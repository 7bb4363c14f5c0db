//! Tests of I1 and I3 at every isolation level: which claims of other sessions a session sees.
//! PostgreSQL's own isolation tester executes the specs.
//!
//! The specs are in `tests/isolation/specs`, their expected output is in
//! `tests/isolation/expected`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use idem_testkit::Database;

/// I1, I3: each spec prints its expected output at every isolation level.
#[tokio::test]
async fn i1_i3_specs_pass_at_every_isolation_level() -> Result<()> {
    let input = Path::new(env!("CARGO_MANIFEST_DIR")).join("isolation");
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join("isolation");
    fs::create_dir_all(&output)?;
    let specs = names_in(&input.join("specs"), "spec")?;
    ensure!(
        specs == names_in(&input.join("expected"), "out")?,
        "a spec has no expected output, or an expected output has no spec"
    );

    let db = Database::with_idem("isolation").await?;
    // The destination exists before the first spec, so that sessions wait for claims and not for
    // its creation.
    let session = db.connect().await?;
    session
        .run("SELECT idem.intern_destination('orders')")
        .await?;
    let mut args = vec![
        format!("--dbname={}", db.name()),
        "--use-existing".to_owned(),
        format!("--inputdir={}", input.display()),
        format!("--outputdir={}", output.display()),
        format!("--host={}", db.cluster().socket_dir().display()),
        format!("--bindir={}", db.cluster().install().bin_dir().display()),
    ];
    args.extend(specs);
    let env = [
        // The number of seconds after which the isolation tester stops a step that waits
        // unexpectedly.
        ("PGISOLATIONTIMEOUT", "20"),
        // Some steps are a single statement that claims outside a transaction block, which is an
        // error by default.
        ("PGOPTIONS", "-c idem.lone_claims=allow"),
    ];
    db.cluster()
        .run("pg_isolation_regress", args, &env)
        .with_context(|| {
            let differences = output.join("regression.diffs");
            fs::read_to_string(&differences)
                .unwrap_or_else(|_| format!("no {}", differences.display()))
        })?;
    Ok(())
}

fn names_in(directory: &Path, extension: &str) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|found| found == extension)
            && let Some(name) = path.file_stem()
        {
            names.push(name.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}
