//! The names of the tests in a Rust file.

use rustc_lexer::{FrontmatterAllowed, TokenKind, tokenize};

/// Returns the line and the name of each function that has an attribute with a path that ends in
/// `test`.
pub fn tests(content: &str) -> Vec<(usize, &str)> {
    let mut names = Vec::new();
    let mut is_test = false;
    let mut after_fn = false;
    let mut position = 0;
    let mut line = 1;
    let mut attribute: Option<Attribute> = None;
    for token in tokenize(content, FrontmatterAllowed::No) {
        let text = &content[position..position + token.len as usize];
        position += text.len();
        match (token.kind, &mut attribute) {
            (TokenKind::Pound, None) => attribute = Some(Attribute::default()),
            (_, Some(open)) => {
                if let Some(found) = open.push(token.kind, text) {
                    is_test |= found;
                    attribute = None;
                }
            }
            (TokenKind::Ident, None) if after_fn => {
                if is_test {
                    names.push((line, text));
                }
                (is_test, after_fn) = (false, false);
            }
            (TokenKind::Ident, None) => after_fn = text == "fn",
            _ => {}
        }
        line += text.matches('\n').count();
    }
    names
}

/// An attribute that is being read, from `#` to its `]`.
#[derive(Default)]
struct Attribute {
    depth: u32,
    has_arguments: bool,
    /// Whether the last segment of the path is `test`.
    name_is_test: bool,
}

impl Attribute {
    /// Reads the next token. At the end of the attribute, returns whether the attribute marks a
    /// test.
    fn push(&mut self, kind: TokenKind, text: &str) -> Option<bool> {
        match kind {
            TokenKind::OpenBracket => self.depth += 1,
            TokenKind::CloseBracket => {
                self.depth = self.depth.saturating_sub(1);
                if self.depth == 0 {
                    return Some(self.name_is_test);
                }
            }
            TokenKind::OpenParen => self.has_arguments = true,
            TokenKind::Ident if !self.has_arguments => self.name_is_test = text == "test",
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::tests as names;

    #[test]
    fn functions_with_a_test_attribute_are_found() {
        let content = "#[test]\nfn one() {}\n\
                       #[tokio::test(flavor = \"multi_thread\")]\n#[ignore = \"long\"]\n\
                       async fn two() {}\n\
                       #[cfg(test)]\nmod m { fn helper() {} }\n";
        assert_eq!(names(content), [(2, "one"), (5, "two")]);
    }
}
