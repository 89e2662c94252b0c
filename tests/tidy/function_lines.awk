# From the output of code_lines.awk: LINES FILE:LINE NAME for each function that has a body of more than MAX lines of
# code; those under model/kernels/ may have KERNEL_MAX. A function's braces are the ones in the first column.
{
    match($0, /^[^:]*:[0-9]+:/)
    place = substr($0, 1, RLENGTH - 1)
    code = substr($0, RLENGTH + 1)
    sub(/[ \t]+$/, "", code)
}
code == "{" { inside = 1; count = 0; start = place; next }
inside && code ~ /^}/ {
    limit = start ~ /^model\/kernels\// ? KERNEL_MAX : MAX
    if (count > limit)
        print count, start, name
    inside = 0
    next
}
inside { count++ }
!inside && code ~ /^[A-Za-z_].*\(/ {
    name = code
    sub(/[ \t]*\(.*/, "", name)
    sub(/.*[ \t*]/, "", name)
}
