//! The drivers that are packages of Debian: those of Perl, Ruby, PHP, Go, Java and C.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::slice;

use anyhow::{Context, Result};

use super::{alone, once, run, source, target};

/// The folder of the libraries of Java.
const JARS: &str = "/usr/share/java";

/// The libraries of Spring 4.3. Their files have the name of version 3.
const SPRING: [&str; 7] = [
    "spring3-aop",
    "spring3-beans",
    "spring3-core",
    "spring3-jdbc",
    "spring3-transaction",
    "aopalliance",
    "commons-logging",
];

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
    let program = compiled("go", slice::from_ref(&file), |program| {
        go_build(&file, program)
    })?;
    let mut command = Command::new(program);
    command.arg(driver);
    Ok(command)
}

/// Compiles a program of Go.
pub(super) fn go_build(file: &Path, program: &Path) -> Result<()> {
    let mut go = Command::new("go");
    // The packages of Debian have no modules: their source text is a workspace of Go.
    go.env("GO111MODULE", "off")
        .env("GOPATH", "/usr/share/gocode");
    go.env("GOFLAGS", "");
    run(go.arg("build").arg("-o").arg(program).arg(file))
}

/// Returns the command that executes a driver of Java: `pgjdbc` or `spring`.
///
/// # Errors
/// Fails when Java or the driver is missing.
pub fn java(driver: &str) -> Result<Command> {
    let files = ["Main.java", "SpringSession.java"].map(|file| source("java").join(file));
    let jars = jars(&SPRING);
    let classes = compiled("java", &files, |classes| javac(&files, &jars, classes))?;
    let mut command = java_with(&jars, &classes);
    command.args(["Main", driver]);
    Ok(command)
}

/// Compiles classes of Java into a folder.
pub(super) fn javac(files: &[PathBuf], jars: &str, classes: &Path) -> Result<()> {
    let mut javac = Command::new("javac");
    javac.args(["-Xlint:all,-path", "-cp", jars, "-d"]);
    run(javac.arg(classes).args(files))
}

/// Returns the command that executes Java with these libraries and this folder of classes.
pub(super) fn java_with(jars: &str, classes: &Path) -> Command {
    let mut path = OsString::from(jars);
    path.push(":");
    path.push(classes);
    let mut command = Command::new("java");
    // Java would leave a file in /tmp when it is killed.
    command.args(["-XX:-UsePerfData", "-cp"]).arg(path);
    command
}

/// Returns the class path with pgJDBC, Jackson and these libraries of Debian.
pub(super) fn jars(further: &[&str]) -> String {
    let jars = [
        "postgresql",
        "jackson-databind",
        "jackson-core",
        "jackson-annotations",
    ];
    let all = jars.iter().chain(further);
    let paths: Vec<_> = all.map(|jar| format!("{JARS}/{jar}.jar")).collect();
    paths.join(":")
}

/// Returns the command that executes libpq, the driver of C, in pipeline mode.
///
/// # Errors
/// Fails when the compiler or the driver is missing.
pub fn c() -> Result<Command> {
    let file = source("c").join("main.c");
    let libraries = ["-lpq", "-ljansson", "-lcrypto"];
    let program = compiled("c", slice::from_ref(&file), |program| {
        gcc(&file, program, &libraries)
    })?;
    Ok(Command::new(program))
}

/// Compiles a program of C with these libraries.
pub(super) fn gcc(file: &Path, program: &Path, libraries: &[&str]) -> Result<()> {
    let mut gcc = Command::new("gcc");
    gcc.args([
        "-std=gnu11",
        "-Wall",
        "-Wextra",
        "-I/usr/include/postgresql",
    ]);
    gcc.arg("-o").arg(program).arg(file);
    run(gcc.args(libraries))
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

/// Compiles a program unless these source texts are compiled already. `compile` gets the path of
/// the program.
fn compiled(
    language: &str,
    files: &[PathBuf],
    compile: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let _alone = alone()?;
    let folder = target(language)?;
    let program = folder.join("main");
    let texts: Vec<_> = files.iter().map(fs::read).collect::<Result<_, _>>()?;
    once(&folder, &texts.concat(), || {
        compile(&program).context(
            "cannot compile a program. If its compiler or driver is missing: `cargo xtask test \
             drivers` installs it",
        )
    })?;
    Ok(program)
}
