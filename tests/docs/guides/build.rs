//! Generates a function from each Rust example in the guides, so that an example that does not
//! compile fails the build.

use std::{env, error::Error, fmt::Write, fs, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let docs = Path::new("../../../docs");
    println!("cargo::rerun-if-changed={}", docs.display());
    let mut guides: Vec<_> = fs::read_dir(docs)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_, std::io::Error>>()?;
    guides.retain(|guide| guide.extension().is_some_and(|extension| extension == "md"));
    guides.sort();

    let mut code = String::new();
    let mut count = 0;
    for guide in guides {
        let name = guide
            .file_stem()
            .and_then(|name| name.to_str())
            .ok_or("a guide has no file name")?;
        let text = fs::read_to_string(&guide)?;
        for (line, block) in rust_blocks(&text) {
            count += 1;
            let function = format!("{}_{line}", name.replace('-', "_"));
            write!(
                code,
                "/// {name}.md, line {line}.\n\
                 pub async fn {function}(given: Given) \
                 -> Result<(), Box<dyn std::error::Error + Send + Sync>> {{\n\
                 {UNPACK}\n{block}\nOk(())\n}}\n\n"
            )?;
        }
    }
    if count < 6 {
        return Err(format!(
            "found only {count} examples: the format of the guides may have changed"
        )
        .into());
    }
    fs::write(Path::new(&env::var("OUT_DIR")?).join("guides.rs"), code)?;
    Ok(())
}

/// The values that the examples use without creating them.
const UNPACK: &str = "let Given { pool, mut client, source, publisher, rabbit, nats, kafka, idem, \
                      policies, shutdown } = given;";

/// Returns each example with the number of its first line. A block that is marked as a program is
/// omitted: it shows an example program of the client, and the tests of the client compare the
/// block with the program.
fn rust_blocks(text: &str) -> Vec<(usize, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (number, line) in text.lines().enumerate() {
        match &mut open {
            None if line == "```rust" => open = Some((number + 2, String::new())),
            None => {}
            Some(_) if line == "```" => blocks.extend(open.take()),
            Some((_, block)) => {
                block.push_str(line);
                block.push('\n');
            }
        }
    }
    blocks
}
