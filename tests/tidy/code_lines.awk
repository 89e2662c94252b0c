# Prints each line that has code as FILE:LINE:CODE, without comments and with strings and characters emptied, so that
# what is searched for in code is not found in prose. Includes keep their names.
FNR == 1 { in_comment = 0 }
!in_comment && /^[ \t]*#[ \t]*include/ { print FILENAME ":" FNR ":" $0; next }
{
    line = $0
    code = ""
    while (line != "") {
        if (in_comment) {
            at = index(line, "*/")
            if (at == 0)
                break
            line = substr(line, at + 2)
            in_comment = 0
        } else if (match(line, /"([^"\\]|\\.)*"|'([^'\\]|\\.)*'|\/\*|\/\//)) {
            found = substr(line, RSTART, RLENGTH)
            code = code substr(line, 1, RSTART - 1)
            line = substr(line, RSTART + RLENGTH)
            if (found == "//")
                break
            if (found == "/*")
                in_comment = 1
            else
                code = code substr(found, 1, 1) substr(found, 1, 1)
        } else {
            code = code line
            break
        }
    }
    if (code ~ /[^ \t]/)
        print FILENAME ":" FNR ":" code
}
