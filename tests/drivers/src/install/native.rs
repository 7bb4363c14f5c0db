//! The drivers that are packages of Debian: those of Perl, Ruby, PHP, Go, Java and C.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{alone, once, run, source, target};

/// The folder of the libraries of Java.
const JARS: &str = "/usr/share/java";

/// Returns the command that executes DBD::Pg, the driver of Perl.
///
/// # Errors
/// Fails when Perl or the driver is missing.
pub fn perl() -> Result<Command> {
    present(Command::new("perl").args(["-MDBD::Pg", "-e", "1"]))?;
    Ok(script("perl", &source("perl").join("main.pl")))
}

/// Returns the command that executes pg, the driver of Ruby.
///
/// # Errors
/// Fails when Ruby or the driver is missing.
pub fn ruby() -> Result<Command> {
    present(Command::new("ruby").args(["-r", "pg", "-e", ""]))?;
    Ok(script("ruby", &source("ruby").join("main.rb")))
}

/// Returns the command that executes PDO, the driver of PHP.
///
/// # Errors
/// Fails when PHP or the driver is missing.
pub fn php() -> Result<Command> {
    present(Command::new("php").args(["--re", "pdo_pgsql"]))?;
    let mut command = Command::new("php");
    // PHP writes its warnings to the standard output otherwise.
    command.args(["-d", "display_errors=stderr"]);
    command.arg(source("php").join("main.php"));
    Ok(command)
}

/// Returns the command that executes a driver of Go: `pgx` or `database_sql`.
///
/// # Errors
/// Fails when Go or the driver is missing.
pub fn go(driver: &str) -> Result<Command> {
    let file = source("go").join("main.go");
    let program = compiled("go", &file, |program| {
        let mut go = Command::new("go");
        // The packages of Debian have no modules: their source text is a workspace of Go.
        go.env("GO111MODULE", "off")
            .env("GOPATH", "/usr/share/gocode");
        go.env("GOFLAGS", "");
        run(go.arg("build").arg("-o").arg(program).arg(&file))
    })?;
    let mut command = Command::new(program);
    command.arg(driver);
    Ok(command)
}

/// Returns the command that executes pgJDBC, the driver of Java.
///
/// # Errors
/// Fails when Java or the driver is missing.
pub fn java() -> Result<Command> {
    let file = source("java").join("Main.java");
    let jars = [
        "postgresql",
        "jackson-databind",
        "jackson-core",
        "jackson-annotations",
    ];
    let jars = jars.map(|jar| format!("{JARS}/{jar}.jar")).join(":");
    let classes = compiled("java", &file, |classes| {
        let mut javac = Command::new("javac");
        javac.args(["-Xlint:all", "-cp", &jars, "-d"]);
        run(javac.arg(classes).arg(&file))
    })?;
    let mut path = OsString::from(jars);
    path.push(":");
    path.push(classes);
    let mut command = Command::new("java");
    // Java would leave a file in /tmp when it is killed.
    command.arg("-XX:-UsePerfData");
    command.arg("-cp").arg(path).arg("Main");
    Ok(command)
}

/// Returns the command that executes libpq, the driver of C, in pipeline mode.
///
/// # Errors
/// Fails when the compiler or the driver is missing.
pub fn c() -> Result<Command> {
    let file = source("c").join("main.c");
    let program = compiled("c", &file, |program| {
        let mut gcc = Command::new("gcc");
        gcc.args([
            "-std=gnu11",
            "-Wall",
            "-Wextra",
            "-I/usr/include/postgresql",
        ]);
        gcc.arg("-o").arg(program).arg(&file);
        run(gcc.args(["-lpq", "-ljansson", "-lcrypto"]))
    })?;
    Ok(Command::new(program))
}

fn script(interpreter: &str, file: &Path) -> Command {
    let mut command = Command::new(interpreter);
    command.arg(file);
    command
}

/// Fails when a command fails that loads a driver.
fn present(command: &mut Command) -> Result<()> {
    run(command).context("a driver is missing: `cargo xtask test drivers` installs it")
}

/// Compiles a program unless this source text is compiled already. `compile` gets the path of the
/// program.
fn compiled(
    language: &str,
    file: &Path,
    compile: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let _alone = alone()?;
    let folder = target(language)?;
    let program = folder.join("main");
    once(&folder, &fs::read(file)?, || {
        compile(&program).context(
            "cannot compile a program. If its compiler or driver is missing: `cargo xtask test \
             drivers` installs it",
        )
    })?;
    Ok(program)
}
