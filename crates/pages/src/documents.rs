//! What documents have a reader type, for the tests that hold it against the programs.

/// The command lines of one program in a Markdown text: in code blocks, by fence or indentation, and between backticks.
/// Each is its words behind the program's name. Left out is what is not meant literally: with `[`, `{`, `(` or `…`.
pub fn commands(text: &str, program: &str) -> Vec<Vec<String>> {
    let (code, prose) = parts(text);
    let inline = prose.split('`').skip(1).step_by(2);
    let lines = code.iter().copied().chain(inline);
    // One line can have several commands, and a remark behind them.
    let lines = lines.map(|line| line.split(" #").next().unwrap_or_default());
    let commands = lines.flat_map(|line| line.split(" && ")).map(str::trim);
    let commands = commands.map(|command| command.strip_prefix("sudo ").unwrap_or(command));
    commands
        .filter_map(|command| command.strip_prefix(program)?.strip_prefix(' '))
        .filter(|rest| !rest.contains(['[', '{', '(', '…']) || rest.contains("[::]") || rest.contains("[::1]"))
        .map(words)
        .collect()
}

/// Lines of code, and the rest in one line.
fn parts(text: &str) -> (Vec<&str>, String) {
    let (mut code, mut prose) = (Vec::new(), String::new());
    let (mut is_fenced, mut is_behind_blank) = (false, true);
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        } else if is_fenced || is_behind_blank && line.starts_with("    ") {
            code.push(line);
            continue;
        } else {
            prose.push_str(line);
            prose.push(' ');
        }
        is_behind_blank = line.trim().is_empty();
    }
    (code, prose)
}

/// As a shell splits them, up to where another command or file begins.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for char in line.trim().trim_end_matches('\\').chars() {
        match (quote, char) {
            (Some(open), char) if char == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(char);
                word.get_or_insert_default();
            }
            (None, '|' | '>' | '<' | ';' | '&') => break,
            (None, ' ') => words.extend(word.take()),
            (_, char) => word.get_or_insert_default().push(char),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_code_blocks_and_between_backticks_are_found() {
        let text = "\
Run `tool run FILE --fast`, or `sudo tool
check \"a b\"`; `tool` alone and `toolbox x` are other things.

    tool one --x 1      # a remark
    cd there && tool two | less
    tool three [OPTIONS]
    tool four '' x

* an item
    tool is a word of it

```sh
tool -6 [::1]:80 >file
```
";
        let found: Vec<String> = commands(text, "tool").iter().map(|words| words.join("+")).collect();
        assert_eq!(
            found,
            [
                "one+--x+1",
                "two",
                "four++x",
                "-6+[::1]:80",
                "run+FILE+--fast",
                "check+a b"
            ]
        );
    }
}
