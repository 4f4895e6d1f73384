//! What documentation shows: the commands and the files in its fenced blocks, so that tests can run and use them.

/// A command and the output that is shown for it.
#[derive(Debug, PartialEq, Eq)]
pub struct Example {
    /// The command, without the prompt.
    pub command: String,
    /// The lines that it prints, without trailing white space.
    pub output: Vec<String>,
}

/// The commands in fenced blocks, of whichever program. A backslash at a line's end goes on with the next.
pub fn examples(markdown: &str) -> Vec<Example> {
    let mut examples: Vec<Example> = Vec::new();
    let mut in_block = false;
    let mut of_this_block = 0;
    for line in markdown.replace("\\\n", "").lines() {
        let line = line.trim_end();
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
            of_this_block = examples.len();
        } else if in_block && line.starts_with("$ ") {
            examples.push(Example { command: line["$ ".len()..].to_owned(), output: Vec::new() });
        } else if in_block
            && examples.len() > of_this_block
            && let Some(example) = examples.last_mut()
        {
            example.output.push(line.to_owned());
        }
    }
    for example in &mut examples {
        while example.output.last().is_some_and(String::is_empty) {
            example.output.pop();
        }
    }
    examples
}

/// The texts of the fenced blocks.
pub fn blocks(markdown: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut open: Option<String> = None;
    for line in markdown.lines() {
        if line.trim_start().starts_with("```") {
            match open.take() {
                Some(block) => blocks.push(block),
                None => open = Some(String::new()),
            }
        } else if let Some(block) = &mut open {
            block.push_str(line);
            block.push('\n');
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
text
```console
$ one \\
    more
1
2

$ two
```
$ not here
```
output of nothing
```
";

    #[test]
    fn examples_are_found() {
        let example = |command: &str, output: &[&str]| Example {
            command: command.to_owned(),
            output: output.iter().map(|line| (*line).to_owned()).collect(),
        };
        assert_eq!(examples(TEXT), [example("one     more", &["1", "2"]), example("two", &[])]);
    }

    #[test]
    fn blocks_are_found() {
        assert_eq!(blocks(TEXT), ["$ one \\\n    more\n1\n2\n\n$ two\n", "output of nothing\n"]);
    }
}
