//! Compiles the library that makes the wall clock wrong: see `src/clock`.

use std::{env, path::PathBuf, process::ExitCode};

const SOURCE: &str = "src/clock/wrong_clock.c";

fn main() -> ExitCode {
    println!("cargo:rerun-if-changed={SOURCE}");
    let Some(out) = env::var_os("OUT_DIR") else {
        println!("cargo::error=cargo has not set OUT_DIR");
        return ExitCode::FAILURE;
    };
    let library = PathBuf::from(out).join("libwrong_clock.so");
    let mut compiler = cc::Build::new().get_compiler().to_command();
    compiler.args([
        "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o",
    ]);
    match compiler.arg(&library).arg(SOURCE).status() {
        Ok(status) if status.success() => {
            println!("cargo:rustc-env=WRONG_CLOCK_LIBRARY={}", library.display());
            ExitCode::SUCCESS
        }
        failed => {
            println!("cargo::error=the C compiler cannot build {SOURCE}: {failed:?}");
            ExitCode::FAILURE
        }
    }
}
